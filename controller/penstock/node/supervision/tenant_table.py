"""All tenants of a state directory: their grants and recent use, looked at once a round.

Whoever supervises a tenant needs its neighbours' figures for what it is lent, and the agent, which
supervises all of them, looks once for all. Most tenants do nothing most of the time, and a round
costs next to nothing for them: one native look, and no more.
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
# So many grant files are looked at in a round for having been replaced; whoever replaces one here
# says so.
GRANTS_A_ROUND = 25


class CoTenant:
    """A tenant as last seen. What cannot be read any more stands as it was."""

    def __init__(
        self, directory: Path, survey: Survey, renewed: Callable[[CoTenant], None]
    ) -> None:
        """`renewed` is told when it has another grant; its page has to be opened then."""
        self.directory = directory
        self.stamp = (0, 0)  # of the grant's file
        self.grant: Grant | None = None
        self.use: dict[str, RecentUse] = {}  # by device UUID
        self.usage: UsageSnapshot | None = None  # as it was read last
        self.problem: str | None = None  # why its usage page cannot be read
        self.stirred = True  # in the last round something came to be that its supervisor acts on
        self.part = Part()
        self._survey = survey
        self._renewed = renewed
        self._lock = threading.Lock()  # of the page and what is read of it
        self._page: UsagePage | None = None
        self._inode = 0  # of the page
        self._read_digest = 0
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
        self._let_go_of_page()  # the name may stand for another tenant by now
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
        """After a look that found something in it; False: its page has to be opened anew."""
        self.stirred = True
        if self.part.notable:
            self.problem = None
            return True
        if self._page is not None:
            self.newest()  # says what is wrong with it
            self._let_go_of_page()  # scribbled over or truncated: by name it may be a new one
        return False

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
                self.part.tell_again()  # it may be whole again by then
            return self.usage

    def beat(self, quota: QuotaWriter) -> None:
        """Renews the heartbeat of this page in each round, till `TenantTable.close_quota`."""
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


class TenantTable:
    """Every tenant of `state`. `look` does one round."""

    def __init__(self, state: State, namespaced: NamespacedProcesses | None = None) -> None:
        self._state = state
        self._survey = Survey()
        self._neighbours: dict[Path, CoTenant] = {}
        self._by_part: dict[Part, CoTenant] = {}
        self._stirred: list[CoTenant] = []  # by the last look
        self._unread: set[CoTenant] = set()  # whose grant or page has to be opened
        self._directories: Iterable[Path] | None = None
        self._told: deque[tuple[Path, Grant | None]] = deque()
        self._sharers: Counter[Key] | None = None  # None: to be counted anew
        self._shared: dict[Key, Shared] = {}
        self._round = 0
        self.concerned: set[Path] = set()
        """Whose supervisors have something to do after the last look; others may wait a second."""
        self.changes = 0
        """How often the sharing of any device has changed."""
        self.namespaced = namespaced or NamespacedProcesses()
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
        """The tenant of `directory`; None: it was not there in the last round."""
        return self._neighbours.get(directory)

    def __iter__(self) -> Iterator[CoTenant]:
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
                stamp = (0, 0)  # its grant was lost, and is known all the same
            if known is None:
                known = self._make(directory)
            known.take(grant, stamp)

    def _follow(self, directories: tuple[Path, ...] | None) -> None:
        """Looks at these from now on, and at no others."""
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
        self._stirred.append(made)  # so it was made
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
        """Those without a grant at once, some of the others in turn."""
        turns = max(1, len(self._neighbours) // GRANTS_A_ROUND)
        everybody = list(self._neighbours.values())
        unknown = [neighbour for neighbour in self._unread if neighbour.grant is None]
        for neighbour in (*unknown, *everybody[self._round % turns :: turns]):
            with contextlib.suppress(OSError, PenstockError):  # about to end
                neighbour.refresh()

    def _share_out(self, active: Iterable[CoTenant], now_ns: int) -> set[Path]:
        """Who is at work on a device whose sharing has changed."""
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
