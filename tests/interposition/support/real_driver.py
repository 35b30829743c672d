"""A real driver library without a GPU, as a counterpart: Debian's `libcuda1`.

It loads anywhere and answers `cuGetProcAddress`; `cuInit` says that there is no device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.interposition.support import debian_packages
from tests.interposition.support.debian_packages import NotToBeHadError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["NotToBeHadError", "find"]


def find(cache: Path) -> Path:
    """The library, fetched into `cache` on first use.

    Raises:
        NotToBeHadError: with the reason.
    """
    return debian_packages.find(cache, "libcuda1", "non-free", "libcuda.so.1")
