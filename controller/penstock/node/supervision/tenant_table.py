"""Tenant table: grants and recent use of all tenants in a state directory, sampled together.

A supervisor needs the figures of its tenant's co-tenants to compute the elastic allowance. The
agent supervises all tenants, and samples them together. Most tenants are idle most of the time, and
an idle tenant costs almost nothing in an iteration, because one native sample covers all tenants.
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
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from penstock.node.tenants.grant import DeviceGrant
    from penstock.node.tenants.state import State
    from penstock_shim.pages import QuotaWriter
    from penstock_shim.recent import RecentUse

Key = tuple["str | None", str]  # identifies a device by machine and UUID
# How many grant files are checked for replacement in each iteration. Code in this process that
# replaces a grant file calls `TenantTable.granted`.
GRANTS_PER_ITERATION = 25


class CoTenant:
    """A tenant as last seen. The last value is kept if a file becomes unreadable."""

    def __init__(
        self, directory: Path, survey: Survey, renewed: Callable[[CoTenant], None]
    ) -> None:
        """`renewed` is called when the grant has changed, after which the page must be reopened."""
        self.directory = directory
        self.stamp = (0, 0)  # identifies the version of the grant's file
        self.grant: Grant | None = None
        self.use: dict[str, RecentUse] = {}  # by device UUID
        self.usage: UsageSnapshot | None = None  # as last read
        self.problem: str | None = None  # why the usage page cannot be read
        self.has_changed = True  # whether the last iteration found work for its supervisor
        self.part = Part()
        self._survey = survey
        self._renewed = renewed
        self._lock = threading.Lock()  # guards the page and the values read from it
        self._page: UsagePage | None = None
        self._inode = 0  # inode of the page
        self._read_digest = 0
        survey.add(self.part)

    def refresh(self) -> bool:
        """Reads the grant again if its file was replaced; returns whether it was replaced.

        Raises:
            OSError: the file cannot be read.
            PenstockError: the grant in it is invalid.
        """
        stamp = _stamp(self.directory)
        if self.stamp == stamp:
            return False
        self.use_grant(read_grant(self.directory), stamp)
        return True

    def use_grant(self, grant: Grant, stamp: tuple[int, int]) -> None:
        """Replaces the tenant's grant by this one."""
        self.grant, self.stamp = grant, stamp
        self.use = {device.uuid: self.part.use(index) for index, device in enumerate(grant.devices)}
        self._release_page()  # another tenant may have taken the name
        self._renewed(self)

    def open(self) -> bool:
        """Opens the usage page if it is not open; returns False if it cannot be read."""
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

    def use_sample(self) -> bool:
        """Handles the result of the last sample; returns False if the page must be reopened."""
        self.has_changed = True
        if self.part.notable:
            self.problem = None
            return True
        if self._page is not None:
            self.newest()  # records what is wrong with the page
            self._release_page()  # a new file may have replaced the damaged page
        return False

    def newest(self) -> UsageSnapshot | None:
        """The usage page, at least as recent as the last iteration. Thread-safe."""
        with self._lock:
            digest = self.part.digest
            if self._page is None or self.grant is None or digest == self._read_digest != 0:
                return self.usage
            try:
                self.usage = self._page.snapshot(len(self.grant.devices))
                self._read_digest = digest
            except PageError as error:
                self.problem = str(error)
                self.part.tell_again()  # by then the page may be readable again
            return self.usage

    def renew_heartbeat(self, quota: QuotaWriter) -> None:
        """Renews the heartbeat of `quota` in each iteration, until `TenantTable.close_quota`."""
        self._survey.beat(self.part, quota)

    def close(self) -> None:
        """Releases all pages."""
        self._survey.remove(self.part)
        self._release_page()

    def _release_page(self) -> None:
        with self._lock:
            self.part.watch(None)
            self._read_digest = 0
            if self._page is not None:
                self._page.close()
                self._page = None


@dataclass(frozen=True)
class Shared:
    """How one device is shared at a given moment."""

    sharers: int = 1
    busy_sharers: int = 0
    allowances: dict[str, int] = field(default_factory=dict)  # permille of each working tenant


ALONE = Shared()


class TenantTable:
    """All tenants of `state`. `sample` runs one iteration."""

    def __init__(self, state: State, namespaced: NamespacedProcesses | None = None) -> None:
        self._state = state
        self._survey = Survey()
        self._co_tenants: dict[Path, CoTenant] = {}
        self._by_part: dict[Part, CoTenant] = {}
        self._changed: list[CoTenant] = []  # tenants that changed in the last sample
        self._unread: set[CoTenant] = set()  # tenants whose grant or page must be opened
        self._directories: Iterable[Path] | None = None
        self._announced: deque[tuple[Path, Grant | None]] = deque()
        self._sharers: Counter[Key] | None = None  # None if they must be counted again
        self._shared: dict[Key, Shared] = {}
        self._iteration = 0
        self.concerned: set[Path] = set()
        """Tenants whose supervisors have work after the last `sample`; others may wait a second."""
        self.changes = 0
        """How often the sharing of any device has changed."""
        self.namespaced = namespaced or NamespacedProcesses()
        """Detects dead processes in other pid namespaces, for all tenants."""

    def granted(self, directory: Path, grant: Grant | None) -> None:
        """Notifies the table of a grant just written, or, if None, that the tenant has ended.

        The next `sample` applies the change. Thread-safe.
        """
        self._announced.append((directory, grant))

    def sample(self, now_ns: int, directories: tuple[Path, ...] | None = None) -> None:
        """Updates grants and recent use of all tenants, or of those in `directories`."""
        self._iteration += 1
        self._apply_changes()
        self._follow(directories)
        self._refresh()
        self._unread = {one for one in self._unread if not one.open()}
        found = self._survey.look(now_ns)
        for co_tenant in self._changed:
            co_tenant.has_changed = False
        self._changed = [self._by_part[part] for part in found.stirred if part in self._by_part]
        for co_tenant in self._changed:
            if not co_tenant.use_sample():
                self._unread.add(co_tenant)
        at_work = [self._by_part[part] for part in found.active if part in self._by_part]
        self.concerned = {one.directory for one in self._changed} | self._update_sharing(
            at_work, now_ns
        )

    def of(self, directory: Path) -> CoTenant | None:
        """The tenant of `directory`, None if the last iteration did not find it."""
        return self._co_tenants.get(directory)

    def shared(self, machine: str | None, uuid: str) -> Shared:
        """How the device `uuid` of `machine` is shared, as of the last iteration.

        Returns the same object until something changes.
        """
        return self._shared.get((machine, uuid), ALONE)

    def close_quota(self, quota: QuotaWriter) -> None:
        """Closes a quota page, whose heartbeat is then no longer renewed. Thread-safe."""
        self._survey.close_quota(quota)

    def close(self) -> None:
        """Releases all pages."""
        for directory in list(self._co_tenants):
            self._drop(directory)

    def _apply_changes(self) -> None:
        while self._announced:
            directory, grant = self._announced.popleft()
            known = self._co_tenants.get(directory)
            if grant is None:
                if known is not None:
                    self._drop(directory)
                    self._directories = None
                continue
            try:
                stamp = _stamp(directory)
            except OSError:
                if not directory.is_dir():
                    continue  # the tenant has ended meanwhile
                stamp = (0, 0)  # the file was lost, but the grant is known
            if known is None:
                known = self._make(directory)
            known.use_grant(grant, stamp)

    def _follow(self, directories: tuple[Path, ...] | None) -> None:
        """Follows exactly these tenants from now on; all tenants if None."""
        if directories is not None and directories is self._directories:
            return
        self._directories = directories
        if directories is None:
            directories = tuple(tenant.directory for tenant in tenants_of(self._state))
        for gone in self._co_tenants.keys() - set(directories):
            self._drop(gone)
        for directory in directories:
            if directory not in self._co_tenants:
                self._make(directory)

    def _make(self, directory: Path) -> CoTenant:
        made = CoTenant(directory, self._survey, self._renew)
        self._co_tenants[directory] = self._by_part[made.part] = made
        self._changed.append(made)  # `has_changed` of a new tenant is true
        self._unread.add(made)
        return made

    def _renew(self, co_tenant: CoTenant) -> None:
        self._unread.add(co_tenant)
        self._sharers = None

    def _drop(self, directory: Path) -> None:
        gone = self._co_tenants.pop(directory)
        gone.close()
        del self._by_part[gone.part]
        self._unread.discard(gone)
        self._sharers = None

    def _refresh(self) -> None:
        """Reads missing grants at once, and checks some of the other grants in rotation."""
        parts = max(1, len(self._co_tenants) // GRANTS_PER_ITERATION)
        everybody = list(self._co_tenants.values())
        unknown = [co_tenant for co_tenant in self._unread if co_tenant.grant is None]
        for co_tenant in (*unknown, *everybody[self._iteration % parts :: parts]):
            with contextlib.suppress(OSError, PenstockError):  # the tenant is about to end
                co_tenant.refresh()

    def _update_sharing(self, active: Iterable[CoTenant], now_ns: int) -> set[Path]:
        """Recomputes how devices are shared; returns the working tenants that this affects."""
        concerned: set[Path] = set()
        if self._sharers is None:
            shares = (share for one in self._co_tenants.values() for share in _shares(one))
            self._sharers = Counter(key for key, _ in shares)
            self._shared = {key: s for key, s in self._shared.items() if key in self._sharers}
        at_work: dict[Key, list[tuple[CoTenant, DeviceGrant]]] = {}
        for co_tenant in active:
            for key, device in _shares(co_tenant):
                at_work.setdefault(key, []).append((co_tenant, device))
        for key, sharers in self._sharers.items():
            members = at_work.get(key, [])
            found = _shared(sharers, members, key[1], now_ns)
            if found != self._shared.get(key):
                self._shared[key] = found
                self.changes += 1
                concerned.update(co_tenant.directory for co_tenant, _ in members)
        return concerned


def _stamp(directory: Path) -> tuple[int, int]:
    found = os.stat(f"{directory}/{GRANT_FILE}")  # noqa: PTH116 - ten times a second
    return found.st_ino, found.st_mtime_ns


def _shares(co_tenant: CoTenant) -> list[tuple[Key, DeviceGrant]]:
    grant = co_tenant.grant
    if grant is None or not grant.holds_devices:
        return []
    return [((grant.machine, one.uuid), one) for one in grant.devices]


def _shared(
    sharers: int, at_work: list[tuple[CoTenant, DeviceGrant]], uuid: str, now_ns: int
) -> Shared:
    """How one device is shared. An idle tenant needs nothing, and does not affect others."""
    demands = []
    for co_tenant, share in at_work:
        use = co_tenant.use[uuid]
        demands.append(
            Demand(
                tenant=co_tenant.directory.name,
                cores_permille=share.cores_permille,
                elastic=co_tenant.grant is not None and co_tenant.grant.mode == "elastic",
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
