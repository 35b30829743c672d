"""Supervisor: runs a training job's program, starts it again when it fails, and stops it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.card.card_list import parse_cards
from penstock.card.names import AS_VARIABLE, EVENTS_VARIABLE, RECOVERY_VARIABLE, VARIABLE
from penstock.card.published import started_ticks
from penstock.card.served_cards import ServedCard, dismiss
from penstock.model.names import MAX_TENANT_NAME
from penstock.training.alarm import Alarm
from penstock.training.run import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.training.document import Spec
    from penstock.training.run import Run

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0  # before the program is started again
ATTEMPT_VARIABLE = "PENSTOCK_TRAIN_ATTEMPT"
LOOKS_S = 0.05
NOT_FOUND, NOT_STARTED = 127, 126  # exit codes, as a shell's


class Supervisor:
    """The supervision of one run, which holds its lock.

    The program writes into the run's log itself, so that it goes on if this process is killed.
    """

    def __init__(self, run: Run, failures: int | None = None) -> None:
        """`failures`: how often the program has failed before, where a cluster starts it again."""
        self._run = run
        self._is_started_elsewhere = failures is not None
        self._spec = run.job().spec
        self._state = State("starting", attempt=failures or 0, began_s=time.time())
        self._why = ""  # the program could not be started
        self._is_stopped = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> State:
        """Runs the program until it succeeds, fails for good, or is stopped; how it ended."""
        if self._spec.webhook is None:
            return self._run_to_its_end()
        alarm = Alarm(self._run, self._spec.webhook)
        try:
            return self._run_to_its_end()
        finally:
            alarm.close()

    def _run_to_its_end(self) -> State:
        while True:
            code = self._attempt()
            if self._is_stopped.is_set():
                return self._end("stopped", code, "it was told to stop")
            if code == 0:
                self._dismiss_cards()
                return self._end("succeeded", code, "")
            reason = self._why or why_ended(code)
            left = self._spec.restarts + 1 - self._state.attempt
            if left <= 0 or code in {NOT_FOUND, NOT_STARTED}:
                self._dismiss_cards()
                return self._end("failed", code, reason)
            if self._is_started_elsewhere:
                text = f"{reason}; it may be started again elsewhere ({left} left)"
                return self._end("failed", code, text, event="restarting")
            pause_s = min(FIRST_PAUSE_S * 2 ** (self._state.attempt - 1), LONGEST_PAUSE_S)
            text = f"{reason}; it is started again in {pause_s:g} s ({left} left)"
            self._note("restarting", text)
            self._set(phase="restarting", pid=0, ticks=0, code=code, reason=text)
            self._is_stopped.wait(pause_s)
            if self._is_stopped.is_set():
                return self._end("stopped", code, "it was told to stop")

    def _dismiss_cards(self) -> None:
        """The run is over, for which cards at addresses may wait."""
        text = self._spec.card_variable() or ""
        served = [one for one in parse_cards(text) if isinstance(one, ServedCard)] if text else []
        for problem in dismiss(served, {**os.environ, **self._spec.environment}):
            self._note("card-not-told", problem)

    def stop(self) -> None:
        """Ends the program, with its children, and does not start it again."""
        if self._is_stopped.is_set():
            return
        self._is_stopped.set()
        self._note("stopping", "it was told to stop")
        threading.Thread(target=self._end_program, daemon=True).start()

    def _attempt(self) -> int:
        """Runs the program once; its exit code, negative for a signal."""
        attempt = self._state.attempt + 1
        self._set(attempt=attempt)
        try:
            with self._run.output.open("ab") as log:
                self._process = subprocess.Popen(
                    command_of(self._spec, self._run, attempt), cwd=self._spec.folder,
                    stdin=subprocess.DEVNULL, env=environment_of(self._spec, self._run, attempt),
                    stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            self._why = f"{self._spec.command[0]} cannot be started: {error.strerror}"
            self._note("not-started", self._why)
            return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED
        pid = self._process.pid
        self._note("started", f"attempt {attempt}, pid {pid}")
        self._set(phase="running", pid=pid, ticks=started_ticks(pid) or 0, code=None, reason="")
        if self._is_stopped.is_set():  # it was told so before there was a program
            threading.Thread(target=self._end_program, daemon=True).start()
        code = self._process.wait()
        with contextlib.suppress(ProcessLookupError):  # its children end with it
            os.killpg(pid, signal.SIGKILL)
        return code

    def _end_program(self) -> None:
        process = self._process
        if process is None:
            return
        end_group(process.pid, self._spec.grace_s, lambda: process.returncode is not None)

    def _end(self, phase: str, code: int, reason: str, event: str = "") -> State:
        self._note(event or phase, reason)
        self._set(phase=phase, pid=0, ticks=0, code=code, reason=reason, ended_s=time.time())
        return self._state

    def _note(self, event: str, text: str) -> None:
        self._run.add_event(event, text)

    def _set(self, **changes: object) -> None:
        self._state = replace(self._state, **changes)  # type: ignore[arg-type]
        try:
            self._run.write_state(self._state)
        except OSError as error:  # of a full disk: the training is worth more
            print(f"penstock: cannot keep the state of run {self._run}: {error.strerror}",
                  file=sys.stderr)  # fmt: skip


def end_group(group: int, grace_s: float, has_ended: Callable[[], bool]) -> None:
    """Ends a program and its children: SIGTERM, and after `grace_s` seconds at most SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)
        deadline_s = time.monotonic() + grace_s
        while not has_ended() and time.monotonic() < deadline_s:
            time.sleep(LOOKS_S)


def why_ended(code: int) -> str:
    """An exit code in words; 0: it succeeded."""
    if code >= 0:
        return f"the program ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    return f"the program was ended by signal {name}"


def command_of(spec: Spec, run: Run, attempt: int) -> list[str]:
    """What is executed: the program, by `penstock run --tflops` if its cards are a pool's.

    The pool's application has the run's name, if that is short enough, and a number of its own at
    each attempt, because the former one may not be over yet.
    """
    pool = spec.pool
    if pool is None:
        return list(spec.command)
    name = f"{run.project}.{run.name}" + (f".{attempt}" if attempt > 1 else "")
    options = {"--name": name if len(name) <= MAX_TENANT_NAME else None,
               "--tflops": pool.tflops, "--memory": pool.memory, "--kind": pool.kind,
               "--priority": pool.priority or None, "--wait": pool.wait}  # fmt: skip
    given = [f"{name}={value}" for name, value in options.items() if value not in {None, ""}]
    return [sys.executable, "-m", "penstock", "run", "--quiet", *given, "--", *spec.command]


def environment_of(spec: Spec, run: Run, attempt: int) -> dict[str, str]:
    """The program's environment."""
    own = {
        "PYTHONUNBUFFERED": "1",  # so that its log is up to date
        AS_VARIABLE: "cuda",
        RECOVERY_VARIABLE: "on",
        EVENTS_VARIABLE: str(run.events_file),
        ATTEMPT_VARIABLE: str(attempt),
    }
    cards = spec.card_variable()
    if cards is not None:
        own[VARIABLE] = cards
    return {**os.environ, **own, **spec.environment}
