"""Ends a tenant's processes: asks them first, then makes them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from typing import TYPE_CHECKING

from penstock.agent.view import Ended
from penstock.enforce.process import is_alive
from penstock.node.processes import members

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from penstock.enforce.process import Process
    from penstock.node.tenant import Tenant

LOOK_AGAIN_S = 0.1
SELDOM = 20  # times as long as a look took: many at once must not take all of the agent's time
# One look at all processes at a time: threads that do it together hardly get on, and nobody else
# gets the interpreter.
LOOKING = threading.Lock()
KILLED_WITHIN_S = 10.0  # by the kernel, unless a process hangs in a driver call


class _Ending:
    """Processes that were asked to end. Told by pidfd: a pid may be another's by now."""

    def __init__(self) -> None:
        self._asked: dict[int, int] = {}  # pid: pidfd
        self._killed: set[int] = set()
        self.ended = 0
        self.killed = 0

    def ask(self, pid: int) -> None:
        """SIGTERM, once."""
        if pid in self._asked:
            return
        with contextlib.suppress(OSError):  # it ended meanwhile
            self._asked[pid] = os.pidfd_open(pid)
            _send(self._asked[pid], signal.SIGTERM)
            _send(self._asked[pid], signal.SIGCONT)  # a stopped one must wake to end

    def kill(self, pid: int) -> None:
        """SIGKILL, once."""
        if pid in self._asked and pid not in self._killed:
            self._killed.add(pid)
            _send(self._asked[pid], signal.SIGKILL)

    def wait(self, timeout_s: float) -> None:
        """Until one of them ends, or for `timeout_s`; counts those that did."""
        poll = select.poll()
        pids = {descriptor: pid for pid, descriptor in self._asked.items()}
        for descriptor in pids:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(timeout_s * 1000):
            pid = pids[descriptor]
            os.close(self._asked.pop(pid))
            self.killed += pid in self._killed
            self.ended += pid not in self._killed
            self._killed.discard(pid)

    def close(self) -> None:
        """Lets go of what is left."""
        for descriptor in self._asked.values():
            os.close(descriptor)
        self._asked.clear()


def end_processes(
    tenant: Tenant,
    grace_ns: int,
    *,
    spare: Collection[int] = (),
    shaken: Callable[[], Iterable[Process]] = tuple,
) -> Ended:
    """SIGTERM to all of the tenant's processes, SIGKILL to those left after `grace_ns`.

    Processes that are started meanwhile are ended too. `spare`: pids that are left alone.
    `shaken`: who shook hands, whatever they did to their environment since.
    """
    deadline = time.monotonic() + grace_ns / 1e9
    ending = _Ending()
    try:
        while True:
            now = time.monotonic()
            with LOOKING:
                found = {*members(tenant.directory), *(p.pid for p in shaken() if is_alive(p))}
            again_s = max(LOOK_AGAIN_S, SELDOM * (time.monotonic() - now))
            left = sorted(found.difference(spare))
            if not left or now > deadline + KILLED_WITHIN_S:
                break
            for pid in left:
                ending.ask(pid)
                if now >= deadline:
                    ending.kill(pid)
            ending.wait(min(again_s, max(0.01, deadline - now)))
        ending.wait(0)
    finally:
        ending.close()
    return Ended(ended=ending.ended, killed=ending.killed)


def _send(pidfd: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)
