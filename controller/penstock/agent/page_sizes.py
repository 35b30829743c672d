"""Keeps usage pages at their size: their writers could fill the file system of all tenants."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.devices.aside import FILES
from penstock.node.events import record_event
from penstock_shim.pages import usage_page_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.agent.agent import Agent
    from penstock.agent.ward import Ward

LOOK_NS = 1_000_000_000


class PageSizes:
    """A duty of the agent's rounds: once a second cuts back what has grown."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._looked_at_ns = 0
        self._told: set[Path] = set()
        self._wards: Sequence[Ward] = ()
        self._pages: tuple[str, ...] = ()  # theirs

    def __call__(self, now_ns: int) -> bool:
        """One round. Nobody who has the page mapped notices: it keeps all that they have."""
        if now_ns - self._looked_at_ns < LOOK_NS:
            return False
        self._looked_at_ns = now_ns
        wards = self._agent.wards()
        if wards is not self._wards:
            self._wards, self._pages = wards, tuple(str(one.tenant.usage_page) for one in wards)
            self._told.intersection_update(map(Path, self._pages))
        most_bytes = usage_page_bytes()
        for page in self._pages:
            with contextlib.suppress(OSError):  # it ends; or no file stands in its place
                found = os.stat(page, follow_symlinks=False)  # noqa: PTH116 - of all, every second
                if found.st_size > most_bytes and stat.S_ISREG(found.st_mode):
                    self._cut(Path(page), found.st_size)
        return True

    def _cut(self, page: Path, size_bytes: int) -> None:
        with contextlib.suppress(TimeoutError):  # its owner holds it; it is cut when he lets go
            FILES.cut(page, usage_page_bytes())
        if page not in self._told:
            self._told.add(page)
            reason = f"its usage page had {size_bytes} bytes, and was cut to {usage_page_bytes()}"
            record_event(page.parent, "page-grown", reason=reason)
