"""The tenant table: grants and recent use of all tenants in a state directory, sampled together.

A supervisor needs the figures of its tenant's co-tenants to compute the elastic allowance. The
agent supervises all tenants and samples them once for all. Most tenants are idle most of the time
and cost next to nothing in an iteration: they share one native sample, and no more.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.node.supervision.elastic import Demand, allowances
from penstock.node.supervision.pid_namespaces import NamespacedProcesses
from penstock.node.tenants.grant import FILE as GRANT_FILE
from penstock.node.tenants.grant import Grant, read_grant
from penstock.node.tenants.tenant import tenants_of
from penstock_shim.pages import PageError, UsagePage, UsageSnapshot
from penstock_shim.survey import Part, Survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from penstock.node.tenants.grant import DeviceGrant
    from penstock.node.tenants.state import State
    from penstock_shim.pages import QuotaWriter
    from penstock_shim.recent import RecentUse

Key = tuple["str | None", str]  # of a device: machine, UUID
# How many grant files are checked for replacement in an iteration. Code in this process that
# replaces one calls `TenantTable.granted`.
GRANTS_A_ROUND = 25


class CoTenant:
    """A tenant as last seen. Files that have become unreadable keep their last value."""

    def __init__(
        self, directory: Path, survey: Survey, renewed: Callable[[CoTenant], None]
    ) -> None:
        """`renewed` is called when the grant has changed; the page must be reopened then."""
        self.directory = directory
        self.stamp = (0, 0)  # of the grant's file
        self.grant: Grant | None = None
        self.use: dict[str, RecentUse] = {}  # by device UUID
        self.usage: UsageSnapshot | None = None  # as it was read last
        self.problem: str | None = None  # why its usage page cannot be read
        self.stirred = True  # the last iteration found something that its supervisor acts on
        self.part = Part()
        self._survey = survey
        self._renewed = renewed
        self._lock = threading.Lock()  # guards the page and what is read from it
        self._page: UsagePage | None = None
        self._inode = 0  # of the page
        self._read_digest = 0
        survey.add(self.part)

    def refresh(self) -> bool:
        """Reads the grant again if its file was replaced; returns whether it was.

        Raises OSError or `PenstockError`.
        """
        stamp = _stamp(self.directory)
        if self.stamp == stamp:
            return False
        self.take(read_grant(self.directory), stamp)
        return True

    def take(self, grant: Grant, stamp: tuple[int, int]) -> None:
        """Uses this grant from now on."""
        self.grant, self.stamp = grant, stamp
        self.use = {device.uuid: self.part.use(index) for index, device in enumerate(grant.devices)}
        self._let_go_of_page()  # the name may belong to another tenant by now
        self._renewed(self)

    def open(self) -> bool:
        """Opens its usage page if it is not open; False: it cannot be read."""
        if self._page is not None:
            return True
        if self.grant is None:
            return False
        try:
            with self._lock:
                self._page = UsagePage.open(self.directory / "usage")
                self.part.watch(self._page, len(self.grant.devices))
        except PageError as error:
            self.problem = str(error)
            return False
        return True

    def settle(self) -> bool:
        """Handles what the last sample found; False: the page must be reopened."""
        self.stirred = True
        if self.part.notable:
            self.problem = None
            return True
        if self._page is not None:
            self.newest()  # says what is wrong with it
            self._let_go_of_page()  # damaged or truncated: there may be a new file by that name
        return False

    def newest(self) -> UsageSnapshot | None:
        """The usage page, at least as of the last iteration. Thread-safe."""
        with self._lock:
            digest = self.part.digest
            if self._page is None or self.grant is None or digest == self._read_digest != 0:
                return self.usage
            try:
                self.usage = self._page.snapshot(len(self.grant.devices))
                self._read_digest = digest
            except PageError as error:
                self.problem = str(error)
                self.part.tell_again()  # the page may be readable again by then
            return self.usage

    def beat(self, quota: QuotaWriter) -> None:
        """Renews the heartbeat of `quota` in each iteration, until `TenantTable.close_quota`."""
        self._survey.beat(self.part, quota)

    def close(self) -> None:
        """Releases all pages."""
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
    """How one device is shared at one moment."""

    sharers: int = 1
    busy_sharers: int = 0
    allowances: dict[str, int] = field(default_factory=dict)  # permille by tenant at work


ALONE = Shared()


class TenantTable:
    """All tenants of `state`. `look` does one iteration."""

    def __init__(self, state: State, namespaced: NamespacedProcesses | None = None) -> None:
        self._state = state
        self._survey = Survey()
        self._neighbours: dict[Path, CoTenant] = {}
        self._by_part: dict[Part, CoTenant] = {}
        self._stirred: list[CoTenant] = []  # as of the last sample
        self._unread: set[CoTenant] = set()  # their grant or page must be opened
        self._directories: Iterable[Path] | None = None
        self._told: deque[tuple[Path, Grant | None]] = deque()
        self._sharers: Counter[Key] | None = None  # None: must be counted again
        self._shared: dict[Key, Shared] = {}
        self._round = 0
        self.concerned: set[Path] = set()
        """Tenants whose supervisors have work after the last `look`; others may wait a second."""
        self.changes = 0
        """How often the sharing of any device has changed."""
        self.namespaced = namespaced or NamespacedProcesses()
        """Detects dead processes in other pid namespaces; one for all tenants."""

    def granted(self, directory: Path, grant: Grant | None) -> None:
        """Notifies the table that a grant was just written or (None) that the tenant has ended.

        The next `look` applies it. Thread-safe.
        """
        self._told.append((directory, grant))

    def look(self, now_ns: int, directories: tuple[Path, ...] | None = None) -> None:
        """Updates grants and recent use of all tenants, or of those in `directories`."""
        self._round += 1
        self._hear()
        self._follow(directories)
        self._refresh()
        self._unread = {one for one in self._unread if not one.open()}
        found = self._survey.look(now_ns)
        for neighbour in self._stirred:
            neighbour.stirred = False
        self._stirred = [self._by_part[part] for part in found.stirred if part in self._by_part]
        for neighbour in self._stirred:
            if not neighbour.settle():
                self._unread.add(neighbour)
        at_work = [self._by_part[part] for part in found.active if part in self._by_part]
        self.concerned = {one.directory for one in self._stirred} | self._share_out(at_work, now_ns)

    def of(self, directory: Path) -> CoTenant | None:
        """The tenant of `directory`; None: it was not there in the last iteration."""
        return self._neighbours.get(directory)

    def __iter__(self) -> Iterator[CoTenant]:
        return iter(list(self._neighbours.values()))

    def shared(self, machine: str | None, uuid: str) -> Shared:
        """How the device `uuid` of `machine` is shared, as of the last iteration.

        Returns the same object as long as nothing changes.
        """
        return self._shared.get((machine, uuid), ALONE)

    def close_quota(self, quota: QuotaWriter) -> None:
        """Closes a page whose heartbeat may be renewed here. Thread-safe."""
        self._survey.close_quota(quota)

    def close(self) -> None:
        """Releases all pages."""
        for directory in list(self._neighbours):
            self._drop(directory)

    def _hear(self) -> None:
        while self._told:
            directory, grant = self._told.popleft()
            known = self._neighbours.get(directory)
            if grant is None:
                if known is not None:
                    self._drop(directory)
                    self._directories = None
                continue
            try:
                stamp = _stamp(directory)
            except OSError:
                if not directory.is_dir():
                    continue  # it has ended meanwhile
                stamp = (0, 0)  # the file was lost, but the grant is known
            if known is None:
                known = self._make(directory)
            known.take(grant, stamp)

    def _follow(self, directories: tuple[Path, ...] | None) -> None:
        """Follows exactly these tenants from now on."""
        if directories is not None and directories is self._directories:
            return
        self._directories = directories
        if directories is None:
            directories = tuple(tenant.directory for tenant in tenants_of(self._state))
        for gone in self._neighbours.keys() - set(directories):
            self._drop(gone)
        for directory in directories:
            if directory not in self._neighbours:
                self._make(directory)

    def _make(self, directory: Path) -> CoTenant:
        made = CoTenant(directory, self._survey, self._renew)
        self._neighbours[directory] = self._by_part[made.part] = made
        self._stirred.append(made)  # as it was constructed
        self._unread.add(made)
        return made

    def _renew(self, neighbour: CoTenant) -> None:
        self._unread.add(neighbour)
        self._sharers = None

    def _drop(self, directory: Path) -> None:
        gone = self._neighbours.pop(directory)
        gone.close()
        del self._by_part[gone.part]
        self._unread.discard(gone)
        self._sharers = None

    def _refresh(self) -> None:
        """Reads missing grants at once, and checks some of the others in rotation."""
        turns = max(1, len(self._neighbours) // GRANTS_A_ROUND)
        everybody = list(self._neighbours.values())
        unknown = [neighbour for neighbour in self._unread if neighbour.grant is None]
        for neighbour in (*unknown, *everybody[self._round % turns :: turns]):
            with contextlib.suppress(OSError, PenstockError):  # about to end
                neighbour.refresh()

    def _share_out(self, active: Iterable[CoTenant], now_ns: int) -> set[Path]:
        """Recomputes the sharing of devices; returns tenants at work where it has changed."""
        concerned: set[Path] = set()
        if self._sharers is None:
            shares = (share for one in self._neighbours.values() for share in _shares(one))
            self._sharers = Counter(key for key, _ in shares)
            self._shared = {key: s for key, s in self._shared.items() if key in self._sharers}
        at_work: dict[Key, list[tuple[CoTenant, DeviceGrant]]] = {}
        for neighbour in active:
            for key, device in _shares(neighbour):
                at_work.setdefault(key, []).append((neighbour, device))
        for key, sharers in self._sharers.items():
            members = at_work.get(key, [])
            found = _shared(sharers, members, key[1], now_ns)
            if found != self._shared.get(key):
                self._shared[key] = found
                self.changes += 1
                concerned.update(neighbour.directory for neighbour, _ in members)
        return concerned


def _stamp(directory: Path) -> tuple[int, int]:
    found = os.stat(f"{directory}/{GRANT_FILE}")  # noqa: PTH116 - ten times a second
    return found.st_ino, found.st_mtime_ns


def _shares(neighbour: CoTenant) -> list[tuple[Key, DeviceGrant]]:
    grant = neighbour.grant
    return [((grant.machine, one.uuid), one) for one in grant.devices] if grant else []


def _shared(
    sharers: int, at_work: list[tuple[CoTenant, DeviceGrant]], uuid: str, now_ns: int
) -> Shared:
    """The sharing of one device. An idle tenant needs nothing and changes nothing for others."""
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
        # An allowance differs from the grant only for elastic tenants.
        allowances=allowances(demands) if any(demand.elastic for demand in demands) else {},
    )
