"""The agent's connection to its checkpoint helper: starts it, and starts it again after its end.

One helper serves all tenants and stays alive: a process that uses the driver for the first time
waits until the driver is ready, which makes a restore several times slower.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as LateError
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from penstock.model import PenstockError
from penstock.node.checkpoint.helper import BUSY, LATE, MISSING, NOT_CUDA, UNSUPPORTED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.devices import DeviceBackend

_PACKAGE = "cuda-core"
_MODULE = "penstock.node.checkpoint.helper"
_ENDED_WITHIN_S = 5.0
_STOPPING = "the agent is stopping"
_HOW = "suspend the tenant without --release-memory"


class RefusedError(PenstockError):
    """The driver refused an order on a process."""


class BusyError(RefusedError):
    """An order does not fit the process's state, perhaps because another one is carried out."""


class HelperLostError(PenstockError):
    """The helper ended, or did not answer in time: the order may or may not be carried out."""


def helper_environment(source: DeviceBackend) -> dict[str, str]:
    """The helper's environment: this process's, and what leads to the driver of `source`."""
    driver = source.libraries().driver
    variables = {**os.environ, **source.environment("penstock")}
    for name in ("LD_PRELOAD", "CUDA_VISIBLE_DEVICES"):
        variables.pop(name, None)
    if driver:
        before = os.environ.get("LD_LIBRARY_PATH")
        folder = str(Path(driver).parent)
        variables["LD_LIBRARY_PATH"] = f"{folder}:{before}" if before else folder
    return variables


def check_installed() -> None:
    """Raises `PenstockError` if the package that calls the driver is not installed."""
    try:
        importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise PenstockError(
            "device memory cannot be moved to the host",
            f"the package {_PACKAGE} is not installed beside the agent",
            "install it: pip install 'penstock[checkpoint]'", reason="not-now",
        ) from None  # fmt: skip


class DriverHelper:
    """Orders to the driver about other processes. Every method may be called from any thread."""

    def __init__(self, environment: Callable[[], Mapping[str, str]]) -> None:
        """`environment`: of the helper, with which it finds the driver."""
        self._environment = environment
        self._lock = threading.Lock()
        self._ids = itertools.count()
        self._process: subprocess.Popen[str] | None = None
        self._is_closed = False
        self._waiting: dict[int, Future[dict[str, Any]]] = {}

    @property
    def pid(self) -> int | None:
        """The pid of the helper that was started last; None if none was."""
        process = self._process
        return None if process is None else process.pid

    def state(self, pid: int, within_s: float) -> str | None:
        """One of "running", "locked", "checkpointed", "failed"; None: the process uses no CUDA.

        Raises:
            PenstockError: the driver cannot be asked.
        """
        answer = self._ask({"order": "state", "pid": pid}, within_s)
        if answer.get("kind") == NOT_CUDA:
            return None
        return _state_of(answer, f"the driver does not tell the state of pid {pid}")

    def lock(self, pid: int, timeout_s: float) -> None:
        """Makes the process's CUDA calls wait, once its submitted work has ended.

        Raises:
            PenstockError: the driver refused, or the work went on for longer than `timeout_s`.
        """
        order = {"order": "lock", "pid": pid, "timeout_ms": int(timeout_s * 1000)}
        _state_of(self._ask(order, timeout_s + _ENDED_WITHIN_S), f"pid {pid} could not be locked")

    def checkpoint(self, pid: int, within_s: float) -> None:
        """Moves the device memory of a locked process to the host.

        Raises:
            RefusedError: the driver refused.
            HelperLostError: it is not known whether the driver did it.
        """
        answer = self._ask({"order": "checkpoint", "pid": pid}, within_s)
        what = f"the device memory of pid {pid} could not be moved to the host"
        if answer.get("kind") == UNSUPPORTED:  # locked before, so the driver can do it in general
            raise RefusedError(
                what,
                "the driver does not support it for what this process uses: memory shared between "
                "processes (IPC), managed memory, access between devices, MPS or MIG",
                f"have the program do without these (NCCL: NCCL_P2P_DISABLE=1), or {_HOW}",
            )
        _state_of(answer, what)

    def restore(self, pid: int, mapping: Mapping[str, str], within_s: float) -> None:
        """Moves the memory back; the process is locked then.

        `mapping`: from the UUID of each device to the one in its place; empty: the same devices.

        Raises:
            PenstockError: the driver refused, for example because a device has too little memory.
        """
        bare = {old.removeprefix("GPU-"): new.removeprefix("GPU-") for old, new in mapping.items()}
        _state_of(
            self._ask({"order": "restore", "pid": pid, "mapping": bare}, within_s),
            f"the device memory of pid {pid} could not be moved back to the device",
        )

    def unlock(self, pid: int, within_s: float) -> None:
        """Lets the process's CUDA calls go on. Raises `PenstockError` if the driver refused."""
        answer = self._ask({"order": "unlock", "pid": pid}, within_s)
        _state_of(answer, f"pid {pid} could not be unlocked")

    def close(self) -> None:
        """Ends the helper; the driver completes the orders that it has begun."""
        with self._lock:
            self._is_closed = True
            self._end(_STOPPING)

    def _ask(self, order: dict[str, Any], within_s: float) -> dict[str, Any]:
        answer: Future[dict[str, Any]] = Future()
        with self._lock:
            process = self._running()
            number = next(self._ids)
            self._waiting[number] = answer
            try:
                _pipe(process.stdin).write(json.dumps({"id": number, **order}) + "\n")
                _pipe(process.stdin).flush()
            except (OSError, ValueError) as error:
                self._waiting.pop(number, None)
                raise _lost(str(error)) from error
        try:
            return answer.result(within_s)
        except LateError:
            why = f"it did not answer within {within_s:g} s"
            with self._lock:
                if self._process is process:
                    self._end(why)
            raise _lost(why) from None
        finally:
            self._waiting.pop(number, None)

    def _running(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end("it ended")
        if self._is_closed:
            raise _lost(_STOPPING)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE],
                env=dict(self._environment()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # a Ctrl-C for the agent must not end it during an order
            )
        except OSError as error:
            raise _lost(str(error)) from error
        reader = threading.Thread(
            target=self._read, args=(self._process,), name="checkpoint", daemon=True
        )
        reader.start()
        return self._process

    def _read(self, process: subprocess.Popen[str]) -> None:
        """Passes answers on until the helper ends; then the orders that it had are lost."""
        with contextlib.suppress(OSError, ValueError), _pipe(process.stdout) as lines:
            for line in lines:
                self._pass_on(line)
        with self._lock:
            if self._process is process:
                self._end("it ended")

    def _pass_on(self, line: str) -> None:
        try:
            answer = json.loads(line)
            waiting = self._waiting.pop(answer["id"], None)
        except (ValueError, KeyError, TypeError):  # a library printed something
            return
        if waiting is not None:
            with contextlib.suppress(InvalidStateError):  # `_end` came first
                waiting.set_result(answer)

    def _end(self, why: str) -> None:
        """Ends the helper, if there is one. The caller holds the lock."""
        process, self._process = self._process, None
        lost, self._waiting = self._waiting, {}
        for waiting in lost.values():
            with contextlib.suppress(InvalidStateError):
                waiting.set_exception(_lost(why))
        if process is None:
            return
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the driver
            process.wait(_ENDED_WITHIN_S)
        with contextlib.suppress(OSError):
            _pipe(process.stdin).close()


def _pipe(stream: IO[str] | None) -> IO[str]:
    """The helper's input or output, which is always a pipe."""
    if stream is None:
        raise AssertionError
    return stream


def _state_of(answer: Mapping[str, Any], what: str) -> str:
    if "error" not in answer:
        return str(answer["answer"])
    text, kind = str(answer["error"]), answer.get("kind")
    if kind == MISSING:
        raise RefusedError(
            "device memory cannot be moved to the host",
            f"the package cuda.core is missing ({text})",
            "install it beside penstock: pip install 'penstock[checkpoint]'",
        )
    if kind == BUSY:
        raise BusyError(what, text, "try again")
    if kind == LATE:
        raise RefusedError(
            what, "its work on the device went on for too long, or the process is stopped",
            f"try again when its kernels are shorter, or {_HOW}",
        )  # fmt: skip
    raise RefusedError(what, text, f"docs/how-to/suspend.md lists what drivers refuse; or {_HOW}")


def _lost(why: str) -> HelperLostError:
    return HelperLostError(
        "the checkpoint helper did not carry out an order", why,
        "the agent starts it again and goes on", reason="unavailable",
    )  # fmt: skip
