"""Device memory of a tenant's processes: moves to the host, and back to the devices.

Callers may repeat both directions at any time, also after the process that began one has died: the
driver knows the state of each process.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.node.checkpoint.driver_helper import BusyError, RefusedError
from penstock.node.enforcement.process import Process, is_alive, is_stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.node.checkpoint.driver_helper import DriverHelper

ASK_S = 20.0  # the driver answers at once, but a helper that has just started takes seconds
LOCK_S = 10.0  # how long work that was submitted before may take
COPY_S = 600.0  # 300 GB at 0.5 GB/s
BUSY_S = 0.05  # between questions whether an earlier helper's order has been carried out
AT_ONCE = 8  # processes of one tenant
ROUNDS = 8  # of looking for processes that were started meanwhile


@dataclass
class Took:
    """Seconds that each kind of step took, all processes together."""

    seconds: dict[str, float] = field(default_factory=dict)
    is_begun: bool = False
    """Whether a process may have been locked."""

    def add(self, step: str, began_s: float) -> None:
        """Adds the time since `began_s` (`time.monotonic`)."""
        took_s = time.monotonic() - began_s
        self.seconds[step] = round(self.seconds.get(step, 0.0) + took_s, 4)


@dataclass(frozen=True)
class ProcessMemory:
    """Moves the device memory of processes by the driver's checkpoints."""

    helper: DriverHelper

    def release(
        self, processes: Callable[[], Iterable[Process]], are_idle: Callable[[], None], took: Took
    ) -> None:
        """Moves all device memory to the host.

        `processes`: those that are there now. It is called again, since they may start others.
        `are_idle`: called when all of them are locked, so that no work is on a device.

        Raises:
            RefusedError: the driver refused one of them. Others may be locked or have been moved:
                `restore` and `unlock` bring all of them back.
            HelperLostError: it is not known whether the driver did it; `release` can be repeated.
        """
        done: set[Process] = set()
        for _ in range(ROUNDS):
            users = self._users(one for one in processes() if one not in done)
            if not users:
                return
            took.is_begun, began_s = True, time.monotonic()
            _beside(self._lock, users)
            took.add("lock", began_s)
            new = [one for one in processes() if one not in done and one not in users]
            if self._users(new):  # started before launches were held back; all are locked first
                continue
            are_idle()
            began_s = time.monotonic()
            _beside(self._checkpoint, users)
            took.add("checkpoint", began_s)
            done.update(users)
        raise RefusedError(
            "device memory was not moved to the host",
            "the tenant started new processes again and again meanwhile",
            "try again when it does not",
        )

    def restore(
        self,
        processes: Iterable[Process],
        mapping: Callable[[Process], Mapping[str, str]],
        took: Took,
    ) -> None:
        """Moves all memory back; the processes stay locked until `unlock`.

        `mapping`: for a process, from the UUID of each device to the one in its place; empty: the
        same devices.

        Raises:
            PenstockError: the driver refused, for example because a device has too little memory
                left, or the helper was lost. Some of the memory may be back.
        """
        users = self._users(processes)
        began_s = time.monotonic()
        _beside(lambda one: self._restore(one, mapping(one)), users)
        took.add("restore", began_s)

    def unlock(self, processes: Iterable[Process], took: Took) -> None:
        """Lets the processes go on. Raises `PenstockError` if the driver refused that."""
        users = self._users(processes)
        began_s = time.monotonic()
        _beside(self._unlock, users)
        took.add("unlock", began_s)

    def release_again(self, processes: Iterable[Process]) -> None:
        """Moves the memory of those that are locked to the host again, after a failed `restore`.

        Raises:
            PenstockError: the driver refused.
        """
        _beside(self._checkpoint, self._users(processes))

    def locked(self, processes: Iterable[Process]) -> list[Process]:
        """Those that are locked, so that their memory is on a device. Raises `PenstockError`."""
        processes = list(processes)
        states = _beside(self._state, processes)
        return [one for one, state in zip(processes, states, strict=True) if state == "locked"]

    def is_released(self, process: Process) -> bool:
        """Whether the process has no device memory, as far as the driver tells its state.

        Raises:
            PenstockError: the driver cannot be asked.
        """
        return self._state(process) in {None, "checkpointed"}

    def _users(self, processes: Iterable[Process]) -> list[Process]:
        """Those that use CUDA."""
        processes = list(processes)
        states = _beside(self._state, processes)
        return [one for one, state in zip(processes, states, strict=True) if state is not None]

    def _state(self, process: Process) -> str | None:
        if not is_alive(process):
            return None
        try:
            return self.helper.state(process.pid, ASK_S)
        except RefusedError:
            if not is_alive(process):
                return None
            raise

    def _lock(self, process: Process) -> None:
        if is_stopped(process) and self._state(process) == "running":
            raise RefusedError(
                f"pid {process.pid} could not be locked",
                "the process is stopped (by SIGSTOP or a debugger), and has to take part",
                "let it go on (SIGCONT), then try again",
            )
        self._step(process, "running", lambda: self.helper.lock(process.pid, LOCK_S))
        if self._state(process) == "failed":
            raise RefusedError(
                f"the device memory of pid {process.pid} could not be moved to the host",
                "an earlier checkpoint failed, and the driver (before 580) cannot use the process "
                "any more",
                "end the process, and install driver 580 or later",
            )

    def _checkpoint(self, process: Process) -> None:
        self._step(process, "locked", lambda: self.helper.checkpoint(process.pid, COPY_S))

    def _restore(self, process: Process, mapping: Mapping[str, str]) -> None:
        self._step(
            process, "checkpointed", lambda: self.helper.restore(process.pid, mapping, COPY_S)
        )

    def _unlock(self, process: Process) -> None:
        self._step(process, "locked", lambda: self.helper.unlock(process.pid, ASK_S))

    def _step(self, process: Process, before: str, order: Callable[[], None]) -> None:
        """Carries out an order on a process in the state `before`; nothing in any other state.

        An order of an earlier helper may still be carried out: then it is waited for.

        Raises:
            PenstockError: the driver refused, or the helper was lost.
        """
        until_s = time.monotonic() + COPY_S
        while self._state(process) == before and not self._is_done(process, order, until_s):
            time.sleep(BUSY_S)

    def _is_done(self, process: Process, order: Callable[[], None], until_s: float) -> bool:
        """Carries out the order; False if another one is being carried out."""
        try:
            order()
        except RefusedError as error:
            if self._state(process) is None:  # it has ended, or is about to
                return True
            if not isinstance(error, BusyError) or time.monotonic() > until_s:
                raise
            return False
        return True


def _beside(work: Callable[[Process], object], processes: Iterable[Process]) -> list[object]:
    """Does the work for all processes at the same time.

    All of it ends before an error is raised; a refusal goes before a loss of the helper.
    """
    processes = list(processes)
    if not processes:
        return []
    with ThreadPoolExecutor(AT_ONCE, "checkpoint") as threads:
        begun = [threads.submit(work, one) for one in processes]
    errors = [error for one in begun if (error := one.exception()) is not None]
    if errors:
        first = next((one for one in errors if isinstance(one, RefusedError)), errors[0])
        raise first
    return [one.result() for one in begun]
