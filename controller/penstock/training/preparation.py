"""Preparation: the steps that make a run's data before its program, each done once."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.training.process import NOT_STARTED, why_ended, why_not_started
from penstock.training.step_process import StepProcess
from penstock.training.step_record import StepRecord, strerror

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.training.data import Step
    from penstock.training.document import Spec
    from penstock.training.run import Run

LOOKS_S = 0.1
FAILED = 1  # exit code of a step that ended well and has not made what it was to make


class StepError(Exception):
    """A step has failed.

    Attributes:
        code: The exit code that its run gets.
    """

    def __init__(self, name: str, code: int, why: str) -> None:
        super().__init__(f"step {name}: {why}")
        self.code = code


class _StoppedError(Exception):
    """The preparation was told to stop."""


class Preparation:
    """The preparation of one run's data. `stop` may be called from another thread."""

    def __init__(self, run: Run, spec: Spec, on_change: Callable[[dict[str, str]], None]) -> None:
        """`on_change`: called with the phase of each step, by name (`State`)."""
        if spec.data is None:
            raise TypeError("the job prepares no data")
        self._run, self._spec, self._data = run, spec, spec.data
        self._on_change = on_change
        self._phases = {one.name: "waiting" for one in spec.data.prepare}
        self._words: list[str] = []  # what was done, for the event
        self._is_stopped = threading.Event()
        self._lock = threading.Lock()  # of what the threads share
        self._processes: list[StepProcess] = []

    def run(self) -> str:
        """Does what is not done yet; what was done, in words.

        Raises:
            StepError: a step has failed, or the preparation was told to stop.
        """
        self._on_change(self._phases)
        with ThreadPoolExecutor(self._data.parallel, "prepare") as threads:
            error = self._done_in_order(threads)
        if error is not None:
            raise error
        return "; ".join(self._words)

    def _done_in_order(self, threads: ThreadPoolExecutor) -> StepError | None:
        """Does each step when those that it depends on are done; the first error, if any."""
        left = list(self._data.prepare)
        running: dict[Future[None], Step] = {}
        done: set[str] = set()
        error: StepError | None = None
        while running or (left and error is None):
            if error is None:
                for step in [one for one in left if done.issuperset(one.after)]:
                    left.remove(step)
                    running[threads.submit(self._do, step)] = step
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                step, failure = running.pop(future), future.exception()
                if failure is None:
                    done.add(step.name)
                elif error is None:
                    error = _as_step_error(step, failure)
                    self.stop()  # what the other steps make would be of no use
        return error

    def stop(self) -> None:
        """Ends the steps that run; no other is begun."""
        with self._lock:
            self._is_stopped.set()
            processes = list(self._processes)
        stops = [threading.Thread(target=one.stop, args=(self._spec.grace_s,)) for one in processes]
        for one in stops:
            one.start()
        for one in stops:
            one.join()

    def _do(self, step: Step) -> None:
        """Does one step, unless it was done before. Raises `StepError`, `OSError`."""
        folder = Path(self._spec.folder or ".").resolve()
        record = StepRecord(self._run.folder.parent, step, folder, self._spec.environment)
        with record.locked(self._wait) as lock:
            self._check()
            for one in record.inputs:
                if not one.exists():
                    raise StepError(step.name, NOT_STARTED, f"its input {one} is not there")
            why = record.why_not_done()
            if why is None:
                self._set(step, "done before", f"{step.name} was done before")
                return
            self._set(step, "running")
            try:
                began_s = time.monotonic()
                self._execute(step, record, lock)
            except BaseException:
                self._set(step, "failed")
                raise
            took_s = time.monotonic() - began_s
            self._set(step, "done", f"{step.name} done in {took_s:.1f} s ({why})")

    def _execute(self, step: Step, record: StepRecord, lock: int) -> None:
        """Runs a step's command, and notes that it was done. Raises `StepError`, `OSError`."""
        code = self._exit_code(step, lock)
        self._check()
        if code:
            raise StepError(step.name, code, why_ended(code, "it"))
        for one in record.outputs:
            if not one.exists():
                raise StepError(step.name, FAILED, f"it ended well, but {one} is not there")
        record.keep()

    def _exit_code(self, step: Step, lock: int) -> int:
        own = {"PYTHONUNBUFFERED": "1"}  # so that the log is up to date
        with self._lock:
            self._check()
            try:
                process = StepProcess(
                    step.name, step.command, folder=self._spec.folder, log=self._run.output,
                    environment={**os.environ, **own, **self._spec.environment}, lock=lock,
                )  # fmt: skip
            except OSError as error:
                raise StepError(step.name, *why_not_started(step.command[0], error)) from error
            self._processes.append(process)
        try:
            return process.wait()
        finally:
            with self._lock:
                self._processes.remove(process)

    def _set(self, step: Step, phase: str, words: str = "") -> None:
        with self._lock:
            self._phases = {**self._phases, step.name: phase}
            if words:
                self._words.append(words)
            self._on_change(self._phases)

    def _wait(self) -> None:
        self._check()
        time.sleep(LOOKS_S)

    def _check(self) -> None:
        if self._is_stopped.is_set():
            raise _StoppedError


def _as_step_error(step: Step, failure: BaseException) -> StepError:
    if isinstance(failure, StepError):
        return failure
    if isinstance(failure, OSError):
        return StepError(step.name, NOT_STARTED, f"{failure.filename} {strerror(failure)}")
    if isinstance(failure, _StoppedError):
        return StepError(step.name, FAILED, "it was told to stop")
    raise failure
