"""All tenants of a state directory: their grants and recent use, looked at once a round.

Whoever supervises a tenant needs its neighbours' figures for what it is lent, and the agent, which
supervises all of them, looks once for all.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.node.elastic import Demand, allowances
from penstock.node.grant import FILE as GRANT_FILE
from penstock.node.grant import Grant, read_grant
from penstock.node.tenant import tenants_of
from penstock.node.use import WINDOW_NS, RecentUse
from penstock_shim.pages import PageError, UsagePage, UsageSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from penstock.node.state import State


# After so long without a change everything that is told from changes is as it will be.
SETTLED_NS = 3 * WINDOW_NS


@dataclass
class Neighbour:
    """A tenant as last seen. What cannot be read any more stands as it was."""

    directory: Path
    stamp: tuple[int, int] = (0, 0)
    grant: Grant | None = None
    usage: UsageSnapshot | None = None
    use: dict[str, RecentUse] = field(default_factory=dict)  # by device UUID
    problem: str | None = None  # why its usage page cannot be read
    _page: UsagePage | None = None
    _digest: int = 0
    _moved_ns: int = 0  # when its page changed last

    def refresh(self) -> None:
        """Reads the grant again when its file was replaced. Raises OSError or `PenstockError`."""
        found = os.stat(f"{self.directory}/{GRANT_FILE}")  # noqa: PTH116 - ten times a second
        if self.stamp != (found.st_ino, found.st_mtime_ns):
            self.grant = read_grant(self.directory)
            self.stamp = (found.st_ino, found.st_mtime_ns)

    def look(self, now_ns: int) -> None:
        """Takes in what it uses now."""
        try:
            self.refresh()
            if self.grant is None:
                return
            if self._page is None:
                self._page = UsagePage.open(self.directory / "usage")
            digest = self._page.digest(len(self.grant.devices))
            if digest and digest == self._digest and now_ns > self._moved_ns + SETTLED_NS:
                return
            self.usage = self._page.snapshot(len(self.grant.devices))
            if digest != self._digest or _is_busy(self.usage):
                self._moved_ns = now_ns
            self._digest = digest
            self.problem = None
        except PageError as error:  # scribbled over or truncated: by name it may be a new one
            self.problem = str(error)
            self.close()
            return
        except (OSError, PenstockError):
            return  # about to end
        for index, device in enumerate(self.grant.devices):
            self.use.setdefault(device.uuid, RecentUse()).add(now_ns, self.usage, index)

    def close(self) -> None:
        """Lets go of the page."""
        if self._page is not None:
            self._page.close()
            self._page = None
            self._digest = 0


def _is_busy(usage: UsageSnapshot) -> bool:
    """Whether launches are under way: a long kernel moves nothing in the page while it runs."""
    return any(slot.submitted != slot.done for slot in usage.slots)


@dataclass(frozen=True)
class Shared:
    """How one device is shared at a moment."""

    sharers: int
    busy_sharers: int
    allowances: dict[str, int]  # permille by tenant


class Neighbourhood:
    """Every tenant of `state`. `look` does one round."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._neighbours: dict[Path, Neighbour] = {}
        self._shared: dict[tuple[str | None, str], Shared] = {}
        self._now_ns = 0

    def look(self, now_ns: int, directories: Iterable[Path] | None = None) -> None:
        """Takes in grants and recent use of all tenants, or of those in `directories`."""
        self._now_ns = now_ns
        self._shared = {}
        if directories is None:
            directories = (tenant.directory for tenant in tenants_of(self._state))
        seen = set(directories)
        for gone in self._neighbours.keys() - seen:
            self._neighbours.pop(gone).close()
        for directory in seen:
            neighbour = self._neighbours.get(directory)
            if neighbour is None:
                neighbour = self._neighbours[directory] = Neighbour(directory)
            neighbour.look(now_ns)

    def of(self, directory: Path) -> Neighbour | None:
        """The tenant of `directory`; None: it was not there in the last round."""
        return self._neighbours.get(directory)

    def __iter__(self) -> Iterator[Neighbour]:
        return iter(list(self._neighbours.values()))

    def shared(self, machine: str | None, uuid: str) -> Shared:
        """How the device `uuid` of `machine` is shared, as of the last round."""
        key = (machine, uuid)
        if key not in self._shared:
            demands = self._demands(machine, uuid)
            self._shared[key] = Shared(
                sharers=max(1, len(demands)),
                busy_sharers=sum(demand.active for demand in demands),
                allowances=allowances(demands),
            )
        return self._shared[key]

    def _demands(self, machine: str | None, uuid: str) -> list[Demand]:
        demands = []
        for directory, neighbour in self._neighbours.items():
            grant, use = neighbour.grant, neighbour.use.get(uuid)
            if grant is None or use is None or grant.machine != machine:
                continue
            share = next((d for d in grant.devices if d.uuid == uuid), None)
            if share is None:
                continue
            demands.append(
                Demand(
                    tenant=directory.name,
                    cores_permille=share.cores_permille,
                    elastic=grant.mode == "elastic",
                    used_permille=use.permille,
                    asking=use.is_asking(self._now_ns),
                    active=use.is_active(self._now_ns),
                )
            )
        return demands

    def close(self) -> None:
        """Lets go of all pages."""
        for neighbour in self._neighbours.values():
            neighbour.close()
        self._neighbours.clear()
