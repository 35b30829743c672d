"""Usage page sizes: cuts back pages that grow, because they could fill the shared file system.

A tenant's user may write to its page, and can make the page grow by writing past its end, by
allocating blocks beyond its length, or by adding extended attributes. The agent cuts the page back
as soon as free space shrinks, and at least once a second. A tenant whose page grows twice within a
minute is ended. A page outlives its tenant while a process has it open: the agent then empties the
page, and kills every process that makes it grow again (ADR 41).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.devices.aside import FILES
from penstock.node.agent.page_writers import suspects, writers_of
from penstock.node.agent.user_limits import person_of
from penstock.node.enforcement.process import send
from penstock.node.tenants.tenant_events import record_event
from penstock_shim.pages import usage_page_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.node.agent.grant_rate import GrantRate
    from penstock.node.agent.managed_tenant import ManagedTenant
    from penstock.node.agent.node import Node
    from penstock.node.agent.person import People
    from penstock.node.agent.revocation import Revocations
    from penstock.node.agent.tenant_registry import TenantRegistry

CHECK_PERIOD_NS = 1_000_000_000
LESS_ROOM_BYTES, LESS_ROOM_FILES = 4 << 20, 64  # a loss of free space that triggers a check
SAME_NS = 1_000_000_000  # growth this soon is the same growth: one long write may be cut repeatedly
AGAIN_NS = 60_000_000_000  # a second growth within this time is no accident
SHUT_OUT_NS = 600_000_000_000  # how long the user of the page then gets no grant
HELD_NS = 5_000_000_000  # how long a page may stay open after its tenant has ended
SLACK_BYTES = 64 << 10  # blocks that a file system may count beyond the file's own
SEARCH_S = 30.0  # the longest search for the writers of a page
LATELY_NS = 5_000_000_000  # how long `has_cut` is true after a cut

_WAYS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


@dataclass
class _Page:
    """A usage page, kept open while a process may still make it grow."""

    descriptor: int
    person: int | None  # owner of the page
    is_suspect: Callable[[int], bool]  # whether a pid belongs to the owner
    most_bytes: int = field(default_factory=usage_page_bytes)
    grown_ns: int | None = None  # time of the last growth that was cut
    shut_ns: int | None = None  # when the page was emptied, after the tenant's end
    searched_ns: int = 0  # time of the last search for its writers since then

    def is_too_large(self) -> bool:
        """Whether the file is larger than a page should be, by length, blocks or attributes."""
        found = os.fstat(self.descriptor)
        return (
            found.st_size > self.most_bytes
            or found.st_blocks * 512 > self.most_bytes + SLACK_BYTES
            or bool(self._attributes())
        )

    def cut(self) -> None:
        """Cuts the page back to its proper size, unnoticed by the processes that map it.

        Raises:
            OSError: the page cannot be cut.
            TimeoutError: a writer holds the page; it will be cut as soon as the writer lets go.
        """
        FILES.cut(self._path, self.most_bytes)

    def close_to_users(self) -> None:
        """Makes root the only user that may open the page. Raises OSError if that fails."""
        FILES.own(self._path, 0)

    @property
    def _path(self) -> Path:
        """A path for our helper process, valid even if the file was unlinked."""
        return Path(f"/proc/{os.getpid()}/fd/{self.descriptor}")

    def _attributes(self) -> list[str]:
        try:
            return [one for one in os.listxattr(self.descriptor) if one.startswith("user.")]
        except OSError:  # the file system has no extended attributes
            return []


@dataclass(eq=False)
class PageSizes:
    """The agent's periodic task that checks page sizes, and closes a page when its tenant ends."""

    node: Node
    registry: TenantRegistry
    revocations: Revocations
    people: People
    rate: GrantRate
    report: Callable[..., None]

    def __post_init__(self) -> None:
        self._checked_ns = 0
        self._pages: dict[ManagedTenant, _Page] = {}
        self._ended: list[tuple[str, _Page]] = []  # names of ended tenants, and their pages
        self._room = (0, 0)
        self._cut_ns = -LATELY_NS  # time of the last cut, CLOCK_MONOTONIC
        self._checking = threading.Lock()
        self._search: threading.Thread | None = None

    def __call__(self, now_ns: int) -> bool:
        """Checks the pages if due, or if free space has shrunk; returns whether it checked them."""
        room = self._room_left()
        bytes_less, files_less = (
            before - now for before, now in zip(self._room, room, strict=True)
        )
        less = bytes_less > LESS_ROOM_BYTES or files_less > LESS_ROOM_FILES
        if now_ns - self._checked_ns < CHECK_PERIOD_NS and not less:
            return False
        self._checked_ns = now_ns
        self.check()
        return True

    def check(self) -> None:
        """Cuts back grown pages, and ends tenants whose page has grown again. Thread-safe."""
        managed_tenants = self.registry.managed_tenants()
        with self._checking:
            self._follow(managed_tenants)
            offenders = self._check_living()
            self._check_ended()
            self._room = self._room_left()
        # Lock order: a thread may take `_checking` while it holds the registry's lock, never the
        # reverse.
        for managed in offenders:
            with self.registry.lock:
                if self.registry.has(managed):
                    self.revocations.revoke(managed, 0)

    def has_cut(self) -> bool:
        """Whether a page was cut within the last LATELY_NS, which freed space."""
        return time.monotonic_ns() - self._cut_ns < LATELY_NS

    def shut(self, managed: ManagedTenant) -> None:
        """Closes the page to users before the tenant's directory is removed."""
        with self._checking:
            page = self._pages.pop(managed, None) or self._opened(managed)
            if page is None:
                return
            if os.geteuid() != 0:  # page and agent belong to one user, so no one else is affected
                os.close(page.descriptor)
                return
            with contextlib.suppress(OSError):
                page.close_to_users()
            with contextlib.suppress(OSError):
                page.most_bytes = 0
                reader = os.open(f"/proc/self/fd/{page.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
                os.close(page.descriptor)
                page.descriptor = reader
            self._ended.append((managed.tenant.name, page))

    def held_by(self, person: int | str) -> int:
        """How many pages of the person's ended tenants are still open in a process."""
        return sum(page.shut_ns is not None and page.person == person for _, page in [*self._ended])

    def _follow(self, managed_tenants: Sequence[ManagedTenant]) -> None:
        if len(managed_tenants) != len(self._pages) or any(
            managed not in self._pages for managed in managed_tenants
        ):
            for gone in self._pages.keys() - set(managed_tenants):
                os.close(self._pages.pop(gone).descriptor)
            for managed in managed_tenants:
                if managed not in self._pages and (page := self._opened(managed)) is not None:
                    self._pages[managed] = page

    def _opened(self, managed: ManagedTenant) -> _Page | None:
        """The tenant's page, None if it cannot be opened now or is not a regular file."""
        try:
            descriptor = os.open(managed.tenant.usage_page, os.O_RDWR | _WAYS)
        except OSError:
            return None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        return _Page(descriptor, person_of(managed.grant), suspects(managed.grant, self.people))

    def _check_living(self) -> list[ManagedTenant]:
        """Cuts back grown pages of managed tenants; returns the tenants to end."""
        offenders = []
        for managed, page in self._pages.items():
            with contextlib.suppress(OSError):
                if page.is_too_large() and self._is_offence(managed, page):
                    offenders.append(managed)
        return offenders

    def _is_offence(self, managed: ManagedTenant, page: _Page) -> bool:
        """Cuts back a grown page; returns whether its tenant must be ended for the growth."""
        before = os.fstat(page.descriptor)
        is_held = False
        try:
            page.cut()
        except TimeoutError:  # a writer holds the page, which is cut when the write ends
            is_held = True
        self._cut_ns = now_ns = time.monotonic_ns()
        since_ns = AGAIN_NS if page.grown_ns is None else now_ns - page.grown_ns
        if is_held and page.grown_ns is not None:  # this growth was already counted
            page.grown_ns = now_ns
            return False
        if since_ns < SAME_NS:
            return False
        again = since_ns < AGAIN_NS
        page.grown_ns = now_ns
        taken = max(before.st_size, before.st_blocks * 512)
        reason = f"its usage page took {taken} bytes, and was cut to {page.most_bytes}"
        if not again:
            record_event(managed.tenant.directory, "page-grown", reason=reason)
            return False
        self._end_writers(page)
        if managed.revocation is not None:
            return False
        reason = f"its usage page was made to grow again, to {taken} bytes: the tenant is ended"
        record_event(managed.tenant.directory, "page-grown", reason=reason)
        record_event(managed.tenant.directory, "revoked", by=self.node.name, reason=reason)
        self.report(
            "page-grown", tenant=managed.tenant.name, user=managed.grant.user, reason=reason
        )
        person = person_of(managed.grant)
        if person is not None:  # administrators are exempt
            self.rate.shut_out(person, SHUT_OUT_NS)
        return True

    def _check_ended(self) -> None:
        """Cuts back the pages of ended tenants, and closes the pages that have no writers left."""
        for name, page in list(self._ended):
            try:
                if page.shut_ns is None:
                    page.cut()
                    page.shut_ns = time.monotonic_ns()
                elif page.is_too_large():
                    page.cut()
                    self._cut_ns = time.monotonic_ns()
                    self.report("page-grown", tenant=name, reason="after its end")
                    self._end_writers(page)
                if not _has_writers(page.descriptor):
                    os.close(page.descriptor)
                    self._ended.remove((name, page))
                else:
                    self._end_writers_seldom(page, page.shut_ns)
            except OSError:  # noqa: PERF203 - one at a time is what is wanted
                continue

    def _end_writers_seldom(self, page: _Page, shut_ns: int) -> None:
        """Searches for leftover writers of an ended tenant's page, with doubling pauses."""
        now_ns = time.monotonic_ns()
        if now_ns - shut_ns >= HELD_NS and now_ns - page.searched_ns >= page.searched_ns - shut_ns:
            self._end_writers(page)

    def _end_writers(self, page: _Page) -> None:
        """Kills the page's writers, in a thread because there may be many processes to check."""
        if self._search is not None and self._search.is_alive():
            return
        page.searched_ns = time.monotonic_ns()
        descriptor = os.open(f"/proc/self/fd/{page.descriptor}", os.O_RDONLY | os.O_CLOEXEC)

        def search() -> None:
            try:
                for process in writers_of(descriptor, page.is_suspect, SEARCH_S):
                    with contextlib.suppress(OSError):
                        send(process, signal.SIGKILL)
                        self.report("killed", pid=process.pid, command=process.command,
                                           reason="it made a usage page grow")  # fmt: skip
            finally:
                os.close(descriptor)

        self._search = threading.Thread(target=search, name="page-writers", daemon=True)
        self._search.start()

    def _room_left(self) -> tuple[int, int]:
        """Free bytes and free inodes."""
        try:
            found = os.statvfs(self.node.state.tenants)
        except OSError:
            return self._room
        return found.f_bavail * found.f_frsize, found.f_favail


def _has_writers(descriptor: int) -> bool:
    """Whether any process has the file open for writing or mapped; `descriptor` is read-only.

    The kernel grants a read lease only if no process does.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError:
        return True
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False
