"""Supervisor: runs a training job's program, starts it again when it fails, and stops it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.card.card_list import parse_cards
from penstock.card.names import (
    AS_VARIABLE,
    CREDENTIALS_VARIABLE,
    EVENTS_VARIABLE,
    RECOVERY_VARIABLE,
    SPARES_VARIABLE,
    VARIABLE,
)
from penstock.card.published import started_ticks
from penstock.card.served_cards import ServedCard, dismiss
from penstock.model import PenstockError
from penstock.training.alarm import Alarm
from penstock.training.curves import Curves
from penstock.training.names import application_name
from penstock.training.outputs import keep_outputs
from penstock.training.preparation import Preparation, StepError
from penstock.training.process import (
    NOT_FOUND,
    NOT_STARTED,
    end_group,
    kill_group,
    why_ended,
    why_not_started,
)
from penstock.training.run import State

if TYPE_CHECKING:
    from penstock.training.document import Spec
    from penstock.training.run import Run

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0  # before the program is started again
OUTPUTS_MISSING = 1  # exit code of a run whose program ended well, without all outputs
ATTEMPT_VARIABLE = "PENSTOCK_TRAIN_ATTEMPT"


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
        self._preparation: Preparation | None = None
        self._is_stopped = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> State:
        """Runs the program until it succeeds, fails for good, or is stopped; how it ended."""
        with contextlib.ExitStack() as beside:
            if self._spec.metrics is not None:
                from penstock.training.metrics import MetricsPage

                try:
                    page = MetricsPage(self._run, lambda: self._state, self._spec.metrics)
                except PenstockError as error:  # it was free when the run was made
                    self._note("not-started", str(error))
                    return self._end("failed", NOT_STARTED, str(error))
                beside.enter_context(contextlib.closing(page))
            if self._spec.webhook is not None:
                alarm = Alarm(self._run, self._spec.webhook)
                beside.enter_context(contextlib.closing(alarm))
            beside.enter_context(contextlib.closing(Curves(self._run, lambda: self._state)))
            return self._run_to_its_end()

    def _run_to_its_end(self) -> State:
        while True:
            code = self._attempt()
            if self._is_stopped.is_set():
                return self._end("stopped", code, "it was told to stop")
            if code == 0:
                return self._end_well()
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

    def _end_well(self) -> State:
        """Keeps what the job says of what the program has made."""
        self._dismiss_cards()
        if self._spec.outputs:
            self._set(pid=0, ticks=0, reason="its outputs are copied")
            try:
                keep_outputs(self._run, Path(self._spec.folder or "."), self._spec.outputs)
            except PenstockError as error:
                return self._end("failed", OUTPUTS_MISSING, str(error))
        return self._end("succeeded", 0, "")

    def _dismiss_cards(self) -> None:
        """The run is over, for which cards at addresses may wait."""
        lists = (self._spec.card_variable(), self._spec.spares_variable())
        cards = [one for text in lists if text for one in parse_cards(text)]
        served = [one for one in cards if isinstance(one, ServedCard)]
        for problem in dismiss(served, environment_of(self._spec, self._run, self._state.attempt)):
            self._note("card-not-told", problem)

    def stop(self) -> None:
        """Ends the program, with its children, and does not start it again."""
        if self._is_stopped.is_set():
            return
        self._is_stopped.set()
        self._note("stopping", "it was told to stop")
        threading.Thread(target=self._end_program, daemon=True).start()

    def _attempt(self) -> int:
        """Prepares the data and runs the program, once; its exit code, negative for a signal."""
        self._why = ""
        self._set(attempt=self._state.attempt + 1)
        return self._prepared() or self._executed(self._state.attempt)

    def _prepared(self) -> int:
        """Does what is still to do for the data; the exit code of a step that has failed, or 0."""
        if self._spec.data is None:
            return 0
        self._preparation = Preparation(self._run, self._spec, self._set_steps)
        if self._is_stopped.is_set():
            self._preparation.stop()
        try:
            self._note("prepared", self._preparation.run())
        except StepError as error:
            if not self._is_stopped.is_set():
                self._why = str(error)
                self._note("prepare-failed", self._why)
            return error.code
        return 0

    def _set_steps(self, steps: dict[str, str]) -> None:
        running = [name for name, phase in steps.items() if phase == "running"]
        done = sum(phase.startswith("done") for phase in steps.values())
        words = f"{done} of {len(steps)} steps done"
        reason = f"{', '.join(running)}; {words}" if running else words
        self._set(phase="preparing", pid=0, ticks=0, code=None, reason=reason, steps=steps)

    def _executed(self, attempt: int) -> int:
        """Runs the program; its exit code."""
        try:
            with self._run.output.open("ab") as log:
                self._process = subprocess.Popen(
                    command_of(self._spec, self._run, attempt), cwd=self._spec.folder,
                    stdin=subprocess.DEVNULL, env=environment_of(self._spec, self._run, attempt),
                    stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            code, self._why = why_not_started(self._spec.command[0], error)
            self._note("not-started", self._why)
            return code
        pid = self._process.pid
        self._note("started", f"attempt {attempt}, pid {pid}")
        self._set(phase="running", pid=pid, ticks=started_ticks(pid) or 0, code=None, reason="")
        if self._is_stopped.is_set():  # it was told so before there was a program
            threading.Thread(target=self._end_program, daemon=True).start()
        code = self._process.wait()
        kill_group(pid)  # its children end with it
        return code

    def _end_program(self) -> None:
        if self._preparation is not None:
            self._preparation.stop()
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


def command_of(spec: Spec, run: Run, attempt: int) -> list[str]:
    """What is executed: the program, by `penstock run --tflops` if its cards are a pool's."""
    pool = spec.pool
    if pool is None:
        return list(spec.command)
    options = {"--name": application_name(run.project, run.name, attempt),
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
    if spec.spares:
        own[SPARES_VARIABLE] = spec.spares_variable()
    if spec.credentials is not None:
        own[CREDENTIALS_VARIABLE] = spec.credentials
    return {**os.environ, **own, **spec.environment}
