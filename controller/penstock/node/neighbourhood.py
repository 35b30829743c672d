"""All tenants of a state directory: their grants and recent use, looked at once a round.

Whoever supervises a tenant needs its neighbours' figures for what it is lent, and the agent, which
supervises all of them, looks once for all. Most tenants do nothing most of the time, and a round
costs next to nothing for them: one native look, and no more.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.node.elastic import Demand, allowances
from penstock.node.grant import FILE as GRANT_FILE
from penstock.node.grant import Grant, read_grant
from penstock.node.outsiders import Outsiders
from penstock.node.tenant import tenants_of
from penstock_shim.pages import PageError, UsagePage, UsageSnapshot
from penstock_shim.survey import Part, Survey

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from penstock.node.grant import DeviceGrant
    from penstock.node.state import State
    from penstock_shim.pages import QuotaWriter
    from penstock_shim.recent import RecentUse

Key = tuple["str | None", str]  # of a device: machine, UUID
# So many grant files are looked at in a round for having been replaced; whoever replaces one here
# says so.
GRANTS_A_ROUND = 50


class Neighbour:
    """A tenant as last seen. What cannot be read any more stands as it was."""

    def __init__(self, directory: Path, survey: Survey) -> None:
        self.directory = directory
        self.stamp = (0, 0)  # of the grant's file
        self.grant: Grant | None = None
        self.use: dict[str, RecentUse] = {}  # by device UUID
        self.usage: UsageSnapshot | None = None  # as it was read last
        self.problem: str | None = None  # why its usage page cannot be read
        self.stirred = True  # in the last round something came to be that its supervisor acts on
        self.part = Part()
        self._survey = survey
        self._lock = threading.Lock()  # of the page and what is read of it
        self._page: UsagePage | None = None
        self._inode = 0  # of the page
        self._read_digest = self._notable = 0
        survey.add(self.part)

    def refresh(self) -> bool:
        """Reads the grant again when its file was replaced; whether it was.

        Raises OSError or `PenstockError`.
        """
        stamp = _stamp(self.directory)
        if self.stamp == stamp:
            return False
        self.take(read_grant(self.directory), stamp)
        return True

    def take(self, grant: Grant, stamp: tuple[int, int]) -> None:
        """Goes by this grant from now on."""
        self.grant, self.stamp = grant, stamp
        self.use = {device.uuid: self.part.use(index) for index, device in enumerate(grant.devices)}
        self._notable = 0
        self._let_go_of_page()  # the name may stand for another tenant by now

    def open(self) -> None:
        """Opens its usage page if it is not open."""
        if self._page is not None or self.grant is None:
            return
        try:
            with self._lock:
                self._page = UsagePage.open(self.directory / "usage")
                self.part.watch(self._page, len(self.grant.devices))
        except PageError as error:
            self.problem = str(error)

    def settle(self) -> None:
        """After a look: was there anything in it?"""
        notable = self.part.notable
        self.stirred = notable != self._notable or self.part.gone > 0
        self._notable = notable
        if notable == 0 and self._page is not None:
            self.newest()  # says what is wrong with it
            self._let_go_of_page()  # scribbled over or truncated: by name it may be a new one
            self.stirred = True
        elif notable:
            self.problem = None

    def newest(self) -> UsageSnapshot | None:
        """The usage page as of the last round at least. From any thread."""
        with self._lock:
            digest = self.part.digest
            if self._page is None or self.grant is None or digest == self._read_digest != 0:
                return self.usage
            try:
                self.usage = self._page.snapshot(len(self.grant.devices))
                self._read_digest = digest
            except PageError as error:
                self.problem = str(error)
            return self.usage

    def beat(self, quota: QuotaWriter) -> None:
        """Renews the heartbeat of this page in each round, till `Neighbourhood.close_quota`."""
        self._survey.beat(self.part, quota)

    def close(self) -> None:
        """Lets go of all pages."""
        self._survey.remove(self.part)
        self._let_go_of_page()

    def _let_go_of_page(self) -> None:
        with self._lock:
            self.part.watch(None)
            self._read_digest = 0
            if self._page is not None:
                self._page.close()
                self._page = None


@dataclass(frozen=True)
class Shared:
    """How one device is shared at a moment."""

    sharers: int = 1
    busy_sharers: int = 0
    allowances: dict[str, int] = field(default_factory=dict)  # permille by tenant at work


ALONE = Shared()


class Neighbourhood:
    """Every tenant of `state`. `look` does one round."""

    def __init__(self, state: State, outsiders: Outsiders | None = None) -> None:
        self._state = state
        self._survey = Survey()
        self._neighbours: dict[Path, Neighbour] = {}
        self._directories: Iterable[Path] | None = None
        self._told: deque[tuple[Path, Grant | None]] = deque()
        self._members: dict[Key, list[tuple[Neighbour, DeviceGrant]]] | None = None
        self._shared: dict[Key, Shared] = {}
        self._round = 0
        self.concerned: set[Path] = set()
        """Whose supervisors have something to do after the last look; others may wait a second."""
        self.changes = 0
        """How often the sharing of any device has changed."""
        self.outsiders = outsiders or Outsiders()
        """Tells who has died of those in other pid namespaces; one for all."""

    def granted(self, directory: Path, grant: Grant | None) -> None:
        """Says that a grant was just written, or (None) that the tenant has ended.

        It is taken in with the next look. From any thread.
        """
        self._told.append((directory, grant))

    def look(self, now_ns: int, directories: tuple[Path, ...] | None = None) -> None:
        """Takes in grants and recent use of all tenants, or of those in `directories`."""
        self._round += 1
        self._hear()
        self._follow(directories)
        self._refresh()
        for neighbour in self._neighbours.values():
            neighbour.open()
        self._survey.look(now_ns)
        for neighbour in self._neighbours.values():
            neighbour.settle()
        concerned = {one.directory for one in self._neighbours.values() if one.stirred}
        self.concerned = concerned | self._share_out(now_ns)

    def of(self, directory: Path) -> Neighbour | None:
        """The tenant of `directory`; None: it was not there in the last round."""
        return self._neighbours.get(directory)

    def __iter__(self) -> Iterator[Neighbour]:
        return iter(list(self._neighbours.values()))

    def shared(self, machine: str | None, uuid: str) -> Shared:
        """How the device `uuid` of `machine` is shared, as of the last round.

        The same object as long as nothing changes.
        """
        return self._shared.get((machine, uuid), ALONE)

    def close_quota(self, quota: QuotaWriter) -> None:
        """Closes a page whose heartbeat may be renewed here. From any thread."""
        self._survey.close_quota(quota)

    def close(self) -> None:
        """Lets go of all pages."""
        for neighbour in self._neighbours.values():
            neighbour.close()
        self._neighbours.clear()

    def _hear(self) -> None:
        while self._told:
            directory, grant = self._told.popleft()
            known = self._neighbours.get(directory)
            if grant is None:
                if known is not None:
                    known.close()
                    del self._neighbours[directory]
                    self._directories = self._members = None
                continue
            try:
                stamp = _stamp(directory)
            except OSError:
                if not directory.is_dir():
                    continue  # it has ended meanwhile
                stamp = (0, 0)  # its grant was lost, and is known all the same
            if known is None:
                known = self._neighbours[directory] = Neighbour(directory, self._survey)
            known.take(grant, stamp)
            self._members = None

    def _follow(self, directories: tuple[Path, ...] | None) -> None:
        """Looks at these from now on, and at no others."""
        if directories is not None and directories is self._directories:
            return
        self._directories = directories
        if directories is None:
            directories = tuple(tenant.directory for tenant in tenants_of(self._state))
        for gone in self._neighbours.keys() - set(directories):
            self._neighbours.pop(gone).close()
            self._members = None
        for directory in directories:
            if directory not in self._neighbours:
                self._neighbours[directory] = Neighbour(directory, self._survey)
                self._members = None

    def _refresh(self) -> None:
        """Those without a grant at once, some of the others in turn."""
        turns = max(1, len(self._neighbours) // GRANTS_A_ROUND)
        everybody = list(self._neighbours.values())
        unknown = [neighbour for neighbour in everybody if neighbour.grant is None]
        for neighbour in (*unknown, *everybody[self._round % turns :: turns]):
            try:
                if neighbour.refresh():
                    self._members = None
            except (OSError, PenstockError):  # noqa: PERF203 - one at a time is what is wanted
                continue  # about to end

    def _share_out(self, now_ns: int) -> set[Path]:
        """Who is at work on a device whose sharing has changed."""
        concerned: set[Path] = set()
        if self._members is None:
            self._members = _members(self._neighbours.values())
            self._shared = {key: s for key, s in self._shared.items() if key in self._members}
        for key, members in self._members.items():
            at_work = [member for member in members if member[0].part.active]
            found = _shared(len(members), at_work, key[1], now_ns)
            if found != self._shared.get(key):
                self._shared[key] = found
                self.changes += 1
                concerned.update(neighbour.directory for neighbour, _ in at_work)
        return concerned


def _stamp(directory: Path) -> tuple[int, int]:
    found = os.stat(f"{directory}/{GRANT_FILE}")  # noqa: PTH116 - ten times a second
    return found.st_ino, found.st_mtime_ns


def _members(neighbours: Iterable[Neighbour]) -> dict[Key, list[tuple[Neighbour, DeviceGrant]]]:
    """Who has a share of each device."""
    members: dict[Key, list[tuple[Neighbour, DeviceGrant]]] = {}
    for neighbour in neighbours:
        if neighbour.grant is not None:
            for device in neighbour.grant.devices:
                key = (neighbour.grant.machine, device.uuid)
                members.setdefault(key, []).append((neighbour, device))
    return members


def _shared(
    sharers: int, at_work: list[tuple[Neighbour, DeviceGrant]], uuid: str, now_ns: int
) -> Shared:
    """Who is not at work needs nothing now, and changes nothing for the others."""
    demands = []
    for neighbour, share in at_work:
        use = neighbour.use[uuid]
        demands.append(
            Demand(
                tenant=neighbour.directory.name,
                cores_permille=share.cores_permille,
                elastic=neighbour.grant is not None and neighbour.grant.mode == "elastic",
                used_permille=use.permille,
                asking=use.is_asking(now_ns),
                active=use.is_active(now_ns),
            )
        )
    return Shared(
        sharers=max(1, sharers),
        busy_sharers=sum(demand.active for demand in demands),
        # Only of elastic tenants they are other than what was granted.
        allowances=allowances(demands) if any(demand.elastic for demand in demands) else {},
    )
