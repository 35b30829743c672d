"""Assignment of processes to tenants, according to the kernel, never to a tenant's own data.

For each process, the first matching rule decides:

    handshake     the kernel identified it at the tenant's socket (which rejects other processes)
    cgroup        it is in a cgroup of the tenant's containers, or below one
    ancestor      its parent belongs to the tenant, or did when the process was first seen. If the
                  parent is a caller with several tenants, the process's environment decides
    page          the tenant's usage page is mounted in it, at the path of a container's own page,
                  by root or by the page's owner. If root mounted it, all other processes of the
                  container belong to the tenant from then on
    session       it is in a session or process group that a process of the tenant started, and
                  which a process keeps when its parents end
    environment   it was started with the tenant's directory in its environment, by the right user

An assignment holds until the process ends, whatever happens to its environment and its parents.
"""

from __future__ import annotations

import operator
import os
import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.devices.proc_files import read_proc_text
from penstock.node.enforcement.cgroup import containers_of, innermost_containers, paths_of
from penstock.node.enforcement.process import UNKNOWN, Process, Stat, began, read_stat, read_stats
from penstock.node.tenants.mount_lookup import MountedPages, Page, PageId, mounted_pages, pages_of
from penstock.node.tenants.tenant_processes import TENANT_VARIABLE, started_in, started_with

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.node.enforcement.subject import Subject

# How long an unassigned process is checked again after it was first seen. Between fork and exec, a
# process has its parent's environment, and a container's first process enters its cgroup a moment
# later.
YOUNG_NS = 5_000_000_000
_SPREAD = 8  # each scan checks the session of one in 8 known processes …
_RARE = 8  # … and, for one in 8 of those, whether the pid was reused with the same inode
_DEEPEST = 64
# Time limit per scan for one user's mounts. The next scan checks the rest, while they are young.
_LONGEST_NS = 20_000_000
# How long after the first scan an unreadable process may belong to any tenant, because a restarted
# agent does not know which tenant it was assigned to before.
_UNREAD_NS = 30_000_000_000
_MOST_CONTAINERS = 4096  # remembered containers; the oldest are forgotten first


@dataclass
class _Seen:
    stat: Stat
    first_ns: int
    inode: int = 0  # of its directory in /proc
    tenant: str | None = None
    decided_in: int = 0  # the pass that last assigned its tenant
    process: Process | None = None  # created once, because every poll uses it


class Members:
    """All processes of the machine and their tenants. Call `scan` about once a second."""

    def __init__(self) -> None:
        self._known: dict[int, _Seen] = {}
        self._young: set[int] = set()  # the processes in `_known` to check again
        self._led: dict[int, str] = {}  # sessions and process groups started by a tenant's process
        self._last: tuple[Subject, ...] = ()  # from the last scan
        self._new_subjects = False  # whether the subjects differ from the last scan's
        self._subjects: Sequence[Subject] = ()  # the subjects that have cgroups
        self._handshakes: dict[int, tuple[int, str]] = {}  # by pid: start time and tenant
        self._containers: dict[str, str] = {}  # tenant of each container, by cgroup
        self._parents: dict[Process, list[str]] = {}  # the tenants of each caller
        self._directories: dict[str, Subject] = {}
        self._pages: dict[PageId, tuple[Page, str]] = {}  # usage pages and their tenants
        self._mounters_ns: dict[int, int] = {}  # time spent in a scan on reading mounts, by uid
        self._directory_of: dict[int, str | None] = {}  # by pid, from young processes' environments
        self._first_ns = 0  # time of the first scan
        self._unread: set[int] = set()  # processes that the current scan could not read
        self._may_lack = False  # whether an early scan could not read all processes
        self._pass = 0
        self._scans = 0
        self._ours: set[int] = set()
        self._counts: dict[str, int] = {}  # processes of each tenant, at the end of a scan
        self._counted = 0  # `changes` when they were counted
        self.changes = 0
        """Increases whenever a tenant gains or loses a process."""

    def scan(self, now_ns: int, subjects: Sequence[Subject]) -> None:
        """Records new and ended processes, and assigns the new ones to tenants."""
        self._use_subjects(subjects)
        self._pass += 1
        self._scans += 1
        self._ours = _self_and_ancestors()
        self._mounters_ns = dict.fromkeys((page.uid for page, _ in self._pages.values()), 0)
        living = _living()
        for pid in self._known.keys() - living.keys():
            self._forget(pid)
        self._check(living)
        new = living.keys() - self._known.keys()
        self._first_ns = self._first_ns or now_ns
        for pid in new:
            self._led.pop(pid, None)  # a reused pid no longer identifies a session
        stats = read_stats(new)
        self._unread = {pid for pid in new - stats.keys() if _exists(pid)}
        for pid, stat in stats.items():  # a process whose stat blocks runs no code
            self._known[pid] = _Seen(stat, now_ns, living[pid])
            self._young.add(pid)
        if self._new_subjects or self._led:
            self._forget_ended({subject.name for subject in subjects})
        if self._new_subjects:
            self._apply_handshakes()
        self._decide_young(now_ns)
        self._may_lack = bool(self._unread) and now_ns - self._first_ns < _UNREAD_NS
        if self._new_subjects or self.changes != self._counted:
            self._counted = self.changes
            found = Counter(seen.tenant for seen in self._known.values())
            # Replaced as a whole, because other threads read it.
            self._counts = {one.name: found[one.name] for one in subjects}

    def _forget_ended(self, names: set[str]) -> None:
        """Removes assignments to tenants that have ended."""
        for seen in self._known.values():
            if seen.tenant is not None and seen.tenant not in names:
                self._assign(seen, None)
        in_use = {number for seen in self._known.values() for number in _numbers(seen)}
        self._led = {n: name for n, name in self._led.items() if n in in_use and name in names}
        if any(name not in names for name in self._containers.values()):
            self._containers = {c: name for c, name in self._containers.items() if name in names}

    def _decide_young(self, now_ns: int) -> None:
        self._young &= self._known.keys()
        undecided = [pid for pid in self._young if self._known[pid].tenant is None]
        self._directory_of = started_in(undecided, TENANT_VARIABLE)
        young = list(self._young)
        random.shuffle(young)  # there may be no time left for the last ones
        for pid in young:
            seen = self._known[pid]
            if now_ns - seen.first_ns > YOUNG_NS:
                self._young.discard(pid)
            elif seen.tenant is None:
                self._decide(pid, seen)
        self._directory_of = {}

    def tenant_of(self, pid: int) -> str | None:
        """The tenant of the process with this pid; an unassigned process is checked again."""
        seen = self._known.get(pid)
        stat = read_stat(pid) if seen is None or seen.tenant is None else seen.stat
        if stat is None or stat.start_ticks == UNKNOWN:
            return None if stat is None or seen is None else seen.tenant
        if seen is None or seen.stat.start_ticks != stat.start_ticks:
            self._forget(pid)
            seen = self._known[pid] = _Seen(stat, 0)
        if seen.tenant is None:
            seen.stat = stat
            self._pass += 1
            self._decide(pid, seen)
        return seen.tenant

    def owner_of(self, process: Process) -> str | None:
        """The tenant of this very process, as of the last scan. Thread-safe."""
        seen = self._known.get(process.pid)
        return seen.tenant if seen is not None and began(seen.stat, process) else None

    def process(self, pid: int) -> Process | None:
        """The process as it was first seen, None if it is unknown."""
        seen = self._known.get(pid)
        if seen is None:
            return None
        if seen.process is None or seen.process.start_ticks != seen.stat.start_ticks:
            seen.process = Process(pid, seen.stat.start_ticks, seen.stat.comm)
        return seen.process

    def of(self, tenant: str) -> list[Process]:
        """All processes of the tenant, as of the last scan."""
        return [
            Process(pid, seen.stat.start_ticks, seen.stat.comm)
            for pid, seen in sorted(self._known.items())
            if seen.tenant == tenant
        ]

    def count(self, tenant: str) -> int | None:
        """The number of processes in `of`, None before a scan or if a scan could not read all.

        The number must be certain, because the share of a tenant without processes is given away.
        """
        count = self._counts.get(tenant)
        return None if not count and self._may_lack else count

    def _use_subjects(self, subjects: Sequence[Subject]) -> None:
        same = len(subjects) == len(self._last) and all(map(operator.is_, subjects, self._last))
        self._new_subjects = not same
        if same:
            return
        self._last = tuple(subjects)
        self._subjects = [one for one in subjects if one.cgroups]
        self._handshakes = {
            process.pid: (process.start_ticks, one.name)
            for one in subjects
            for process in one.handshake
        }
        self._parents = {}
        for one in subjects:
            for parent in one.parents:
                self._parents.setdefault(parent, []).append(one.name)
        self._directories = {str(one.tenant.directory): one for one in subjects}
        pages = zip(pages_of([one.tenant.usage_page for one in subjects]), subjects, strict=True)
        self._pages = {page.identity: (page, one.name) for page, one in pages if page is not None}

    def _apply_handshakes(self) -> None:
        """Reassigns processes that completed a handshake, which overrides all other rules."""
        for pid in self._handshakes.keys() & self._known.keys() - self._ours:
            seen = self._known[pid]
            tenant = self._by_handshake(pid, seen)
            if tenant is not None and tenant != seen.tenant:
                self._assign(seen, tenant)
                self._note_led(pid, seen)

    def _assign(self, seen: _Seen, tenant: str | None) -> None:
        if seen.tenant != tenant:
            seen.tenant = tenant
            self.changes += 1

    def _forget(self, pid: int) -> None:
        gone = self._known.pop(pid, None)
        if gone is not None and gone.tenant is not None:
            self.changes += 1

    def _check(self, living: Mapping[int, int]) -> None:
        """Forgets processes whose pid was reused, and records new sessions.

        A reused pid has a new inode in /proc. But the kernel may also recreate the inode of the
        same process, so the start time decides.
        """
        rare = self._scans % (_SPREAD * _RARE)
        for pid, seen in list(self._known.items()):
            inode = living[pid]
            if inode == seen.inode and pid % _SPREAD != self._scans % _SPREAD:
                continue
            if (
                inode == seen.inode
                and pid % (_SPREAD * _RARE) != rare
                and _is_where_it_was(pid, seen)
            ):
                continue
            stat = read_stat(pid)
            if stat is not None and stat.start_ticks == UNKNOWN:
                continue
            if stat is None or stat.start_ticks != seen.stat.start_ticks:
                self._forget(pid)
                self._led.pop(pid, None)
                continue
            seen.stat, seen.inode = stat, inode
            self._note_led(pid, seen)

    def _decide(self, pid: int, seen: _Seen, depth: int = 0) -> None:
        if seen.decided_in == self._pass or pid in self._ours:
            return
        seen.decided_in = self._pass
        tenant = (
            self._by_handshake(pid, seen)
            or self._by_cgroup(pid)
            or self._by_ancestor(pid, seen, depth)
            or self._by_page(pid)
            or self._by_session(seen)
            or self._by_environment(pid)
        )
        self._assign(seen, tenant)
        self._note_led(pid, seen)

    def _note_led(self, pid: int, seen: _Seen) -> None:
        if seen.tenant is not None and pid in _numbers(seen):
            self._led[pid] = seen.tenant

    def _by_session(self, seen: _Seen) -> str | None:
        """By session or group: the kernel does not reuse an id while its group has members."""
        for number in _numbers(seen):
            leader = self._known.get(number)
            tenant = self._led.get(number) or (leader.tenant if leader else None)
            if tenant is not None:
                return tenant
        return None

    def _by_handshake(self, pid: int, seen: _Seen) -> str | None:
        start_ticks, tenant = self._handshakes.get(pid, (None, None))
        return tenant if start_ticks == seen.stat.start_ticks else None

    def _by_cgroup(self, pid: int) -> str | None:
        if not self._subjects and not self._containers:
            return None
        paths = paths_of(pid)
        for container in (one for path in paths for one in containers_of(path)):
            if (tenant := self._containers.get(container)) is not None:
                return tenant
        for subject in self._subjects:
            for wanted in subject.cgroups:
                if any(path == wanted or path.startswith(f"{wanted}/") for path in paths):
                    return subject.name
        return None

    def _by_page(self, pid: int) -> str | None:
        """By the mounted usage page: a contained process cannot mount another tenant's page."""
        found = self._mounted(pid) if self._pages else None
        if found is None:
            return None
        known = (self._pages[one] for one in found.identities if one in self._pages)
        tenant = next((name for page, name in known if found.tells_of(page)), None)
        if tenant is not None and found.by_root and self._is_closed(tenant):
            for container in innermost_containers(pid):
                self._containers[container] = tenant
            while len(self._containers) > _MOST_CONTAINERS:
                del self._containers[next(iter(self._containers))]
        return tenant

    def _mounted(self, pid: int) -> MountedPages | None:
        """Pages mounted by root or by users with tenants, within the time limit for each user."""
        asked: list[tuple[int, int]] = []

        def is_asked_for(uid: int) -> bool:
            asked.append((uid, time.monotonic_ns()))
            return uid == os.geteuid() or self._mounters_ns.get(uid, _LONGEST_NS) < _LONGEST_NS

        try:
            found = mounted_pages(pid, is_asked_for)
        except TimeoutError:
            self._unread.add(pid)
            return None
        for uid, began_ns in asked:
            if uid in self._mounters_ns:
                self._mounters_ns[uid] += time.monotonic_ns() - began_ns
        return found

    def _is_closed(self, tenant: str) -> bool:
        """Whether only a runtime can mount the page; otherwise users could claim processes."""
        directory = next((d for d, one in self._directories.items() if one.name == tenant), None)
        try:
            return directory is not None and not os.stat(directory).st_mode & 0o077  # noqa: PTH116
        except OSError:
            return False

    def _by_ancestor(self, pid: int, seen: _Seen, depth: int) -> str | None:
        parent = seen.stat.parent
        above = self._known.get(parent)
        names = self._parents.get(Process(parent, above.stat.start_ticks)) if above else None
        if names:
            named = self._by_environment(pid) if len(names) > 1 else None
            return named if named in names else names[-1]
        if above is None or parent <= 1 or depth >= _DEEPEST:
            return None
        if above.tenant is None:
            self._decide(parent, above, depth + 1)
        return above.tenant

    def _by_environment(self, pid: int) -> str | None:
        directory = (
            self._directory_of[pid]
            if pid in self._directory_of
            else started_with(pid, TENANT_VARIABLE)
        )
        subject = self._directories.get(directory) if directory else None
        if subject is None:
            return None
        return subject.name if subject.uid in {None, _owner(pid)} else None


def _living() -> dict[int, int]:
    """All pids, with the inode of each pid's /proc directory."""
    with os.scandir("/proc") as entries:
        return {int(one.name): one.inode() for one in entries if one.name.isdigit()}


def _exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")  # noqa: PTH110 - for each process


def _is_where_it_was(pid: int, seen: _Seen) -> bool:
    """Whether the process is in the same session and group as before; False if it has ended."""
    try:
        return (os.getsid(pid), os.getpgid(pid)) == (seen.stat.session, seen.stat.group)
    except OSError:
        return False


def _numbers(seen: _Seen) -> Iterable[int]:
    return (seen.stat.session, seen.stat.group)


def _owner(pid: int) -> int | None:
    """The process's real uid, as the owner of its /proc directory is root if not dumpable."""
    try:
        status = read_proc_text(pid, "status")
    except OSError:
        return None
    words = next((one.split() for one in status.splitlines() if one.startswith("Uid:")), [])
    return int(words[1]) if len(words) > 1 else None


def _self_and_ancestors() -> set[int]:
    """The agent and its ancestors, which never belong to a tenant."""
    found: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        stat = read_stat(pid)
        pid = stat.parent if stat else 0
    return found
