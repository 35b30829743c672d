"""Processes by the names that ps shows, as those of cards have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable


def named(name: str, pids: Iterable[int]) -> list[int]:
    """Those of these processes that have this name and still run."""
    return [one.pid for one in psutil.process_iter(["name"])
            if one.pid in set(pids) and one.info["name"] == name]  # fmt: skip
