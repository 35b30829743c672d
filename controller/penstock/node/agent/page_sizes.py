"""Usage page sizes: cuts back pages that grow, as they could fill the shared file system.

A tenant's user may write its page, and so can make it grow: by writing past its end, by allocating
blocks there that its length does not show, or by extended attributes. The agent cuts it back as
soon as free space shrinks, and once a second at least. A tenant that does it twice within a minute
is ended. A page outlives its tenant while a process has it open: the agent then empties it, and
kills every process that makes it grow again (ADR 41).
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
from penstock.node.agent.page_writers import writers_of
from penstock.node.agent.revocation import revoke
from penstock.node.agent.user_limits import person_of
from penstock.node.enforcement.process import send
from penstock.node.tenants.tenant_events import record_event
from penstock_shim.pages import usage_page_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.node.agent.agent import Agent
    from penstock.node.agent.managed_tenant import ManagedTenant

LOOK_NS = 1_000_000_000
LESS_ROOM_BYTES, LESS_ROOM_FILES = 4 << 20, 64  # lost since the last check: check at once
SAME_NS = 1_000_000_000  # growth within that is the same: one write may be cut repeatedly
AGAIN_NS = 60_000_000_000  # a second growth within that is no accident
SHUT_OUT_NS = 600_000_000_000  # for which the user who did it gets no grant
HELD_NS = 5_000_000_000  # for which a page may stay open after its tenant has ended
SLACK_BYTES = 64 << 10  # that a file system may count beyond the file's own blocks
SEARCH_S = 30.0  # the longest search for the writers of a page
LATELY_NS = 5_000_000_000

_WAYS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


@dataclass
class _Page:
    """One page, kept open as long as a process may make it grow."""

    descriptor: int
    person: int | None  # its owner
    is_suspect: Callable[[int], bool]  # whether the process with that pid is the owner's
    most_bytes: int = field(default_factory=usage_page_bytes)
    grown_ns: int | None = None  # when it was last cut
    shut_ns: int | None = None  # when it was emptied, after the tenant's end
    sought_ns: int = 0  # the last search for its writers since then

    def is_too_large(self) -> bool:
        """Whether it takes more room than a page, by length, blocks or attributes."""
        found = os.fstat(self.descriptor)
        return (
            found.st_size > self.most_bytes
            or found.st_blocks * 512 > self.most_bytes + SLACK_BYTES
            or bool(self._attributes())
        )

    def cut(self) -> None:
        """Cuts it back to its proper size; processes that map it notice nothing.

        Raises OSError; TimeoutError: a writer holds it, and it is cut when the writer lets go.
        """
        FILES.cut(self._path, self.most_bytes)

    def close_to_users(self) -> None:
        """Makes it root's alone, so that users cannot open it again. Raises OSError like `cut`."""
        FILES.own(self._path, 0)

    @property
    def _path(self) -> Path:
        """A path for our helper process; it works for an unlinked file, too."""
        return Path(f"/proc/{os.getpid()}/fd/{self.descriptor}")

    def _attributes(self) -> list[str]:
        try:
            return [one for one in os.listxattr(self.descriptor) if one.startswith("user.")]
        except OSError:  # its file system has none
            return []


class PageSizes:
    """A periodic task of the agent; it also closes each page when its tenant ends."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._looked_at_ns = 0
        self._pages: dict[ManagedTenant, _Page] = {}
        self._ended: list[tuple[str, _Page]] = []  # pages of ended tenants, with the tenants' names
        self._room = (0, 0)
        self._cut_ns = -LATELY_NS  # the last time, CLOCK_MONOTONIC
        self._looking = threading.Lock()
        self._search: threading.Thread | None = None

    def __call__(self, now_ns: int) -> bool:
        """One iteration; returns whether pages were checked."""
        room = self._room_left()
        bytes_less, files_less = (
            before - now for before, now in zip(self._room, room, strict=True)
        )
        less = bytes_less > LESS_ROOM_BYTES or files_less > LESS_ROOM_FILES
        if now_ns - self._looked_at_ns < LOOK_NS and not less:
            return False
        self._looked_at_ns = now_ns
        self.look()
        return True

    def look(self) -> None:
        """Cuts back grown pages, and ends tenants whose page grows again. Thread-safe."""
        managed_tenants = self._agent.managed_tenants()
        with self._looking:
            self._follow(managed_tenants)
            offenders = self._look_at_living()
            self._look_at_ended()
            self._room = self._room_left()
        # Lock order: a thread with the agent's lock may take this task's lock, never the reverse.
        for managed in offenders:
            with self._agent.lock:
                if self._agent.has(managed):
                    revoke(self._agent, managed, 0)

    def has_cut(self) -> bool:
        """Whether a page was cut within the last LATELY_NS, so that space is free again."""
        return time.monotonic_ns() - self._cut_ns < LATELY_NS

    def shut(self, managed: ManagedTenant) -> None:
        """Closes the page to users before the tenant's directory is removed."""
        with self._looking:
            page = self._pages.pop(managed, None) or self._opened(managed)
            if page is None:
                return
            if os.geteuid() != 0:  # the file system was the user's own: no one else is affected
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
        """How many pages of that person's ended tenants are still open in a process."""
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
        """None: the page cannot be opened now, or is no regular file."""
        try:
            descriptor = os.open(managed.tenant.usage_page, os.O_RDWR | _WAYS)
        except OSError:
            return None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        return _Page(descriptor, person_of(managed.grant), self._agent.suspects(managed))

    def _look_at_living(self) -> list[ManagedTenant]:
        """Cuts back grown pages of managed tenants; returns the tenants to end."""
        offenders = []
        for managed, page in self._pages.items():
            with contextlib.suppress(OSError):
                if page.is_too_large() and self._is_offence(managed, page):
                    offenders.append(managed)
        return offenders

    def _is_offence(self, managed: ManagedTenant, page: _Page) -> bool:
        """Cuts back a grown page; returns whether its tenant must be ended for it."""
        before = os.fstat(page.descriptor)
        is_held = False
        try:
            page.cut()
        except TimeoutError:  # a writer holds it; it is cut when that ends
            is_held = True
        self._cut_ns = now_ns = time.monotonic_ns()
        since_ns = AGAIN_NS if page.grown_ns is None else now_ns - page.grown_ns
        if is_held and page.grown_ns is not None:  # the same growth
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
        self._seek(page)
        if managed.revocation is not None:
            return False
        reason = f"its usage page was made to grow again, to {taken} bytes: the tenant is ended"
        record_event(managed.tenant.directory, "page-grown", reason=reason)
        record_event(managed.tenant.directory, "revoked", by=self._agent.node, reason=reason)
        self._agent.report(
            "page-grown", tenant=managed.tenant.name, user=managed.grant.user, reason=reason
        )
        self._agent.shut_out(managed.grant, SHUT_OUT_NS)
        return True

    def _look_at_ended(self) -> None:
        """Cuts back the pages of ended tenants, and closes those without writers."""
        for name, page in list(self._ended):
            try:
                if page.shut_ns is None:
                    page.cut()
                    page.shut_ns = time.monotonic_ns()
                elif page.is_too_large():
                    page.cut()
                    self._cut_ns = time.monotonic_ns()
                    self._agent.report("page-grown", tenant=name, reason="after its end")
                    self._seek(page)
                if not _has_writers(page.descriptor):
                    os.close(page.descriptor)
                    self._ended.remove((name, page))
                else:
                    self._seek_now_and_then(page, page.shut_ns)
            except OSError:  # noqa: PERF203 - one at a time is what is wanted
                continue

    def _seek_now_and_then(self, page: _Page, shut_ns: int) -> None:
        """Searches for leftover writers of an ended tenant's page, with doubling pauses."""
        now_ns = time.monotonic_ns()
        if now_ns - shut_ns >= HELD_NS and now_ns - page.sought_ns >= page.sought_ns - shut_ns:
            self._seek(page)

    def _seek(self, page: _Page) -> None:
        """Kills the page's writers, in a thread: there may be many processes to check."""
        if self._search is not None and self._search.is_alive():
            return
        page.sought_ns = time.monotonic_ns()
        descriptor = os.open(f"/proc/self/fd/{page.descriptor}", os.O_RDONLY | os.O_CLOEXEC)

        def search() -> None:
            try:
                for process in writers_of(descriptor, page.is_suspect, SEARCH_S):
                    with contextlib.suppress(OSError):
                        send(process, signal.SIGKILL)
                        self._agent.report("killed", pid=process.pid, command=process.command,
                                           reason="it made a usage page grow")  # fmt: skip
            finally:
                os.close(descriptor)

        self._search = threading.Thread(target=search, name="page-writers", daemon=True)
        self._search.start()

    def _room_left(self) -> tuple[int, int]:
        """Free bytes and free inodes."""
        try:
            found = os.statvfs(self._agent.state.tenants)
        except OSError:
            return self._room
        return found.f_bavail * found.f_frsize, found.f_favail


def _has_writers(descriptor: int) -> bool:
    """Whether any process has the file open for writing or mapped; `descriptor` is read-only.

    The kernel grants a read lease only where none has.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError:
        return True
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False
