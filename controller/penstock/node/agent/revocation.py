"""Revocation of a tenant: a thread that ends its processes until the tenant is removed.

From the request on the tenant is *ending*: the agent accepts nothing for it but a further revoke.
Its share stays allocated until its last process has ended and its directory is removed, however
long that takes. A file in its directory marks it as ending, so that the next agent continues.
"""

from __future__ import annotations

import errno
import json
import threading
import time
from typing import TYPE_CHECKING

from penstock.model import PenstockError, listing
from penstock.node.agent.ending import Ending
from penstock.node.tenants.json_files import read_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.node.agent.agent import Agent
    from penstock.node.agent.managed_tenant import ManagedTenant
    from penstock.node.agent.view import Ended
    from penstock.node.enforcement import Process
    from penstock.node.tenants.tenant import Tenant

FILE = "ending"  # in the tenant's directory: when SIGKILL is due (CLOCK_MONOTONIC, ns)
KILLED_WITHIN_S = 10.0  # from SIGKILL to the end, unless a process hangs in a driver call
# How long callers that are processes of the tenant may take to receive the answer and end: from
# SIGKILL or the first such call, whichever is later. Further calls do not extend it.
SPARED_S = 5.0
LOOK_AGAIN_S = 0.1
SELDOM = 20  # pause after a scan, in scan durations: many at once must leave the agent time
SELDOM_AFTER_S = 2.0  # after an ineffective SIGKILL, scans become rare
RETRY_S = 1.0  # for a directory that cannot be removed
STOPPED_WITHIN_S = 2.0


def revoke(
    agent: Agent, managed: ManagedTenant, grace_ns: int, spare: int | None = None
) -> Revocation:
    """Starts to end the tenant, or moves its deadline up. Call it with the agent's lock held.

    Args:
        agent: The agent that manages the tenant.
        managed: The tenant.
        grace_ns: From SIGTERM to SIGKILL. Of several requests the earliest deadline holds.
        spare: Pid of the caller, which may end last.

    Raises:
        OSError: the revocation cannot be recorded; nothing is done.
    """
    kill_at_ns = time.monotonic_ns() + grace_ns
    if managed.revocation is not None:
        kill_at_ns = min(kill_at_ns, managed.revocation.kill_at_ns)
    _write_mark(managed.tenant, kill_at_ns)
    if managed.revocation is None:
        return _start(agent, managed, kill_at_ns, spare)
    managed.revocation.hasten(kill_at_ns, spare)
    return managed.revocation


def go_on(agent: Agent, managed: ManagedTenant) -> None:
    """Continues a revocation that an earlier agent began. Call it with the agent's lock held."""
    kill_at_ns = _read_mark(managed.tenant)
    if kill_at_ns is not None:
        _start(agent, managed, kill_at_ns)


def _start(
    agent: Agent, managed: ManagedTenant, kill_at_ns: int, spare: int | None = None
) -> Revocation:
    managed.revocation = Revocation(agent, managed, kill_at_ns)
    managed.revocation.hasten(kill_at_ns, spare)
    managed.revocation.start()
    return managed.revocation


class Revocation:
    """The end of one tenant."""

    def __init__(self, agent: Agent, managed: ManagedTenant, kill_at_ns: int) -> None:
        self._agent = agent
        self._managed = managed
        self.kill_at_ns = kill_at_ns  # CLOCK_MONOTONIC
        self._spare: set[int] = set()  # pids of callers
        self._first_spared_s: float | None = None  # time.monotonic()
        self._told: frozenset[int] = frozenset()  # callers, once they alone are left of the tenant
        self._changed = threading.Condition()
        self._left: list[Process] = []  # as of the last scan
        self._is_over = self._is_stopped = False
        self._failures = 0  # of scans, or of removing its directory
        self._failure: Exception | None = None  # the last of them
        self._ending = Ending(managed.tenant, managed.grant.uid, self._known, self._is_anothers)
        self._thread = threading.Thread(target=self._run, name="revoke", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def hasten(self, kill_at_ns: int, spare: int | None) -> None:
        """Moves SIGKILL to `kill_at_ns`, if that is earlier; the process `spare` may end last."""
        with self._changed:
            self.kill_at_ns = min(self.kill_at_ns, kill_at_ns)
            if spare:
                self._spare.add(spare)
                self._first_spared_s = self._first_spared_s or time.monotonic()
            self._changed.notify_all()

    def stop(self) -> None:
        """Ends the thread, not the tenant."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._thread.join(STOPPED_WITHIN_S)

    def wait(self, caller: int | None = None) -> Ended:
        """Waits until the tenant is gone, or only callers are left of it, among them `caller`.

        Raises:
            PenstockError: processes survive SIGKILL; the tenant goes when they have ended.
            OSError: its directory cannot be removed now; that is retried.
        """
        with self._changed:
            failures = self._failures
            while not self._is_over and caller not in self._told:
                if self._is_stopped:
                    raise _stopped(self._managed.tenant.name)
                if self._failures > failures and self._failure is not None:
                    raise self._failure
                late_s = self.kill_at_ns / 1e9 + KILLED_WITHIN_S
                if self._left and time.monotonic() > late_s:
                    raise _hangs(self._managed.tenant.name, self._left)
                self._changed.wait(LOOK_AGAIN_S)
            return self._ending.so_far

    @property
    def finding(self) -> str:
        """The progress of the revocation as text."""
        with self._changed:
            if self._failure is not None:
                return f"revoked, but not removed: {self._failure}"
            if self._left and time.monotonic() > self.kill_at_ns / 1e9 + KILLED_WITHIN_S:
                return f"revoked, but {_pids(self._left)} survive SIGKILL"
        return "revoked: its processes end"

    def _known(self) -> Iterator[Process]:
        """Its processes by handshake and enforcement, whatever their environment says now."""
        name = self._managed.tenant.name
        yield from self._agent.handshakes.processes(name)
        if self._agent.enforcer is not None:
            yield from self._agent.enforcer.members(name)

    def _is_anothers(self, process: Process) -> bool:
        """Whether enforcement assigns it to another tenant; environments can be rewritten."""
        enforcer = self._agent.enforcer
        tenant = enforcer.tenant_of(process) if enforcer is not None else None
        return tenant not in {None, self._managed.tenant.name}

    def _run(self) -> None:
        is_over = False
        while not self._is_stopped and not is_over:
            try:
                is_over = self._step()
            except Exception as error:  # noqa: BLE001, PERF203 - retry until the tenant is gone
                with self._changed:
                    self._failures, self._failure = self._failures + 1, error
                self._pause(RETRY_S)
        self._ending.close()
        with self._changed:
            self._is_over = is_over
            self._changed.notify_all()

    def _step(self) -> bool:
        """One scan and its signals; whether the tenant is gone."""
        began_s = time.monotonic()
        with self._changed:
            kill_at_s = self.kill_at_ns / 1e9
            spared_until_s = max(self._first_spared_s or 0.0, kill_at_s) + SPARED_S
            spare = frozenset(self._spare if began_s < spared_until_s else ())
        left = self._ending.look(spare)
        again_s = max(LOOK_AGAIN_S, SELDOM * (time.monotonic() - began_s))
        self._ending.end(left, kill=began_s >= kill_at_s)
        spared = [] if left or not spare else self._ending.look(frozenset())
        with self._changed:
            self._left = left
            self._told = frozenset(one.pid for one in spared)
        if not left and not spared:
            self._ending.wait(0)
            self._agent.drop(self._managed)
            return True
        if began_s > kill_at_s + SELDOM_AFTER_S:
            again_s = max(again_s, RETRY_S)
        if left:
            due_s = kill_at_s - began_s
            self._ending.wait(min(again_s, due_s) if due_s > 0 else again_s)
            with self._changed:  # a scan is slow where many processes cannot be read
                self._left = self._ending.without_ended(left)
        self._pause(0.0 if left else LOOK_AGAIN_S)
        return False

    def _pause(self, time_s: float) -> None:
        with self._changed:
            self._changed.notify_all()
            if time_s:
                self._changed.wait_for(lambda: self._is_stopped, time_s)


def check_not_ending(managed: ManagedTenant) -> None:
    """Raises `PenstockError` for a tenant that is being ended: it gets nothing more."""
    if managed.revocation is not None:
        raise PenstockError(
            f"tenant {managed.tenant.name!r} is being ended",
            "it was revoked, and ends with its last process",
            "try again when it is gone", reason="not-now",
        )  # fmt: skip


def _hangs(name: str, left: list[Process]) -> PenstockError:
    return PenstockError(
        f"tenant {name!r} has not ended yet",
        f"{_pids(left)} {'are' if len(left) > 1 else 'is'} still there {KILLED_WITHIN_S:g} s after "
        "SIGKILL",
        "its share stays allocated until they have ended; cat /proc/PID/stack shows what they "
        "wait for",
        reason="not-now",
    )


def _stopped(name: str) -> PenstockError:
    return PenstockError(
        f"tenant {name!r} has not ended yet", "the agent stops",
        "the next agent continues", reason="unavailable",
    )  # fmt: skip


def _pids(processes: list[Process]) -> str:
    return f"pid {listing([str(one.pid) for one in processes])}"


def _write_mark(tenant: Tenant, kill_at_ns: int) -> None:
    """Raises OSError, but not on a full disk: the revocation will free space there."""
    file = tenant.directory / FILE
    aside = tenant.directory / f".{FILE}"
    try:
        try:
            aside.write_text(json.dumps({"kill_at_ns": kill_at_ns}), encoding="ascii")
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
        aside.replace(file)  # an empty file suffices as the mark
    except FileNotFoundError:  # the disk is full, or the directory was removed
        return


def _read_mark(tenant: Tenant) -> int | None:
    """When SIGKILL is due; None: the tenant is not being ended."""
    try:
        document = json.loads(read_record(tenant.directory / FILE))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return 0  # the mark exists, whatever its content
    at_ns = document.get("kill_at_ns") if isinstance(document, dict) else None
    return at_ns if isinstance(at_ns, int) else 0
