"""Revocation of a tenant: a thread that ends its processes and then removes the tenant.

From the request on the tenant is *ending*: the agent accepts only further revocations for it. Its
share stays allocated until its last process has ended and its directory is removed, however long
that takes. A file in its directory marks it as ending, so that a restarted agent continues.
"""

from __future__ import annotations

import errno
import json
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model import PenstockError, listing
from penstock.node.agent.ending import Ended, Ending
from penstock.node.tenants.json_files import read_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.node.agent.handshake_sockets import Handshakes
    from penstock.node.agent.managed_tenant import ManagedTenant
    from penstock.node.agent.tenant_registry import TenantRegistry
    from penstock.node.enforcement import Enforcer, Process
    from penstock.node.tenants.tenant import Tenant

FILE = "ending"  # in the tenant's directory; holds the time of SIGKILL (CLOCK_MONOTONIC, ns)
KILLED_WITHIN_S = 10.0  # a process alive for longer after SIGKILL hangs in a driver call
# How long callers that are processes of the tenant may take to receive the response and end, from
# SIGKILL or the first such call, whichever is later. Further calls do not extend this time.
SPARED_S = 5.0
SCAN_PERIOD_S = 0.1
PAUSE_FACTOR = 20  # pause after a scan, in scan durations, so that many scans leave the agent time
RARE_AFTER_S = 2.0  # time after SIGKILL from which scans become rare
RETRY_S = 1.0  # pause after a failure, such as a directory that cannot be removed
STOPPED_WITHIN_S = 2.0


@dataclass(eq=False)
class Revocations:
    """Starts the revocations of tenants. Callers hold the registry's lock."""

    registry: TenantRegistry
    handshakes: Handshakes
    enforcer: Enforcer

    def revoke(self, managed: ManagedTenant, grace_ns: int, spare: int | None = None) -> Revocation:
        """Starts ending the tenant, or brings its deadline forward.

        Args:
            managed: The tenant.
            grace_ns: Time from SIGTERM to SIGKILL. Among several requests, the earliest deadline
                applies.
            spare: Pid of the caller, which may end last.

        Raises:
            OSError: the revocation cannot be recorded; the tenant stays as it is.
        """
        kill_at_ns = time.monotonic_ns() + grace_ns
        if managed.revocation is not None:
            kill_at_ns = min(kill_at_ns, managed.revocation.kill_at_ns)
        _write_mark(managed.tenant, kill_at_ns)
        if managed.revocation is None:
            return self._start(managed, kill_at_ns, spare)
        managed.revocation.hasten(kill_at_ns, spare)
        return managed.revocation

    def resume_earlier(self, managed: ManagedTenant) -> None:
        """Continues a revocation that an earlier agent started."""
        kill_at_ns = _read_mark(managed.tenant)
        if kill_at_ns is not None:
            self._start(managed, kill_at_ns)

    def _start(
        self, managed: ManagedTenant, kill_at_ns: int, spare: int | None = None
    ) -> Revocation:
        name = managed.tenant.name

        def known() -> Iterator[Process]:
            """The tenant's processes, from handshakes and enforcement."""
            yield from self.handshakes.processes(name)
            yield from self.enforcer.members(name)

        def is_anothers(process: Process) -> bool:
            """Whether enforcement assigns it to another tenant, whatever its environment says."""
            return self.enforcer.tenant_of(process) not in {None, name}

        ending = Ending(managed.tenant, managed.grant.uid, known, is_anothers)
        managed.revocation = Revocation(managed, kill_at_ns, ending, self.registry.drop)
        managed.revocation.hasten(kill_at_ns, spare)
        managed.revocation.start()
        return managed.revocation


@dataclass(eq=False)
class Revocation:
    """The revocation of one tenant."""

    managed: ManagedTenant
    kill_at_ns: int  # CLOCK_MONOTONIC
    ending: Ending
    drop: Callable[[ManagedTenant], None]  # called when its last process has ended

    def __post_init__(self) -> None:
        self._spare: set[int] = set()  # pids of callers, which may end last
        self._first_spared_s: float | None = None  # time.monotonic()
        self._only_callers: frozenset[int] = frozenset()  # all that are left, if all are callers
        self._changed = threading.Condition()
        self._left: list[Process] = []  # the processes that the last scan found alive
        self._is_over = self._is_stopped = False
        self._failures = 0  # failed scans or removals of the tenant's directory
        self._failure: Exception | None = None  # the last failure
        self._thread = threading.Thread(target=self._run, name="revoke", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def hasten(self, kill_at_ns: int, spare: int | None) -> None:
        """Brings SIGKILL forward to `kill_at_ns` if that is earlier; `spare` may end last."""
        with self._changed:
            self.kill_at_ns = min(self.kill_at_ns, kill_at_ns)
            if spare:
                self._spare.add(spare)
                self._first_spared_s = self._first_spared_s or time.monotonic()
            self._changed.notify_all()

    def stop(self) -> None:
        """Stops the thread without ending the tenant."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._thread.join(STOPPED_WITHIN_S)

    def wait(self, caller: int | None = None) -> Ended:
        """Waits until the tenant is gone, or only callers are left of it, `caller` among them.

        Raises:
            PenstockError: processes survive SIGKILL (the tenant is removed once they have ended),
                or the agent stops.
            OSError: the tenant's directory cannot be removed now; the thread retries.
        """  # noqa: DOC501 - `_hangs` and `_stopped` make a PenstockError
        with self._changed:
            failures = self._failures
            while not self._is_over and caller not in self._only_callers:
                if self._is_stopped:
                    raise _stopped(self.managed.tenant.name)
                if self._failures > failures and self._failure is not None:
                    raise self._failure
                late_s = self.kill_at_ns / 1e9 + KILLED_WITHIN_S
                if self._left and time.monotonic() > late_s:
                    raise _hangs(self.managed.tenant.name, self._left)
                self._changed.wait(SCAN_PERIOD_S)
            return self.ending.so_far

    @property
    def finding(self) -> str:
        """The progress of the revocation as text."""
        with self._changed:
            if self._failure is not None:
                return f"revoked, but not removed: {self._failure}"
            if self._left and time.monotonic() > self.kill_at_ns / 1e9 + KILLED_WITHIN_S:
                return f"revoked, but {_pids(self._left)} survive SIGKILL"
        return "revoked: its processes are being ended"

    def _run(self) -> None:
        is_over = False
        while not self._is_stopped and not is_over:
            try:
                is_over = self._step()
            except Exception as error:  # noqa: BLE001, PERF203 - retry until the tenant is gone
                with self._changed:
                    self._failures, self._failure = self._failures + 1, error
                self._pause(RETRY_S)
        self.ending.close()
        with self._changed:
            self._is_over = is_over
            self._changed.notify_all()

    def _step(self) -> bool:
        """Scans once and sends the signals that are due; returns whether the tenant is gone."""
        began_s = time.monotonic()
        with self._changed:
            kill_at_s = self.kill_at_ns / 1e9
            spared_until_s = max(self._first_spared_s or 0.0, kill_at_s) + SPARED_S
            spare = frozenset(self._spare if began_s < spared_until_s else ())
        left = self.ending.scan(spare)
        again_s = max(SCAN_PERIOD_S, PAUSE_FACTOR * (time.monotonic() - began_s))
        self.ending.end(left, kill=began_s >= kill_at_s)
        spared = [] if left or not spare else self.ending.scan(frozenset())
        with self._changed:
            self._left = left
            self._only_callers = frozenset(one.pid for one in spared)
        if not left and not spared:
            self.ending.wait(0)
            self.drop(self.managed)
            return True
        if began_s > kill_at_s + RARE_AFTER_S:
            again_s = max(again_s, RETRY_S)
        if left:
            due_s = kill_at_s - began_s
            self.ending.wait(min(again_s, due_s) if due_s > 0 else again_s)
            with self._changed:  # scans are slow if many processes are unreadable
                self._left = self.ending.without_ended(left)
        self._pause(0.0 if left else SCAN_PERIOD_S)
        return False

    def _pause(self, time_s: float) -> None:
        with self._changed:
            self._changed.notify_all()
            if time_s:
                self._changed.wait_for(lambda: self._is_stopped, time_s)


def check_not_ending(managed: ManagedTenant) -> None:
    """Raises `PenstockError` if the tenant is being ended, as it then gets nothing new."""
    if managed.revocation is not None:
        raise PenstockError(
            f"tenant {managed.tenant.name!r} is being ended",
            "it was revoked, and its last process has not ended yet",
            "try again when it is gone", reason="not-now",
        )  # fmt: skip


def _hangs(name: str, left: list[Process]) -> PenstockError:
    return PenstockError(
        f"tenant {name!r} has not ended yet",
        f"{_pids(left)} {'are' if len(left) > 1 else 'is'} still there {KILLED_WITHIN_S:g} s after "
        "SIGKILL",
        "wait until they have ended, as its share stays allocated until then; "
        "cat /proc/PID/stack shows what they wait for",
        reason="not-now",
    )


def _stopped(name: str) -> PenstockError:
    return PenstockError(
        f"tenant {name!r} has not ended yet", "the agent is stopping",
        "start the agent again, and it continues to end the tenant", reason="unavailable",
    )  # fmt: skip


def _pids(processes: list[Process]) -> str:
    return f"pid {listing([str(one.pid) for one in processes])}"


def _write_mark(tenant: Tenant, kill_at_ns: int) -> None:
    """Raises OSError, except on a full disk, where the revocation will free space."""
    file = tenant.directory / FILE
    aside = tenant.directory / f".{FILE}"
    try:
        try:
            aside.write_text(json.dumps({"kill_at_ns": kill_at_ns}), encoding="ascii")
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
        aside.replace(file)  # even an empty file marks the tenant
    except FileNotFoundError:  # the disk is full, or the directory was removed
        return


def _read_mark(tenant: Tenant) -> int | None:
    """When SIGKILL is due, None if the tenant is not being ended."""
    try:
        document = json.loads(read_record(tenant.directory / FILE))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return 0  # the mark counts, even if it is unreadable
    at_ns = document.get("kill_at_ns") if isinstance(document, dict) else None
    return at_ns if isinstance(at_ns, int) else 0
