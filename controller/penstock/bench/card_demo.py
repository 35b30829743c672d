"""Demo of the virtual card: a small training on three unlike cards, compared with the CPU's.

The cards are processes on this machine's own cores, so that it shows what the device does and
nothing of its speed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.card.names import TRACE_VARIABLE, VARIABLE
from penstock.card.published import read_all
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.card.published import ProgramFigures

CARDS = "cpu=1,cpu=2,cpu=4"
PROGRAM = Path(__file__).with_name("card_demo_program.py")
RELATIVE, ABSOLUTE = 1e-3, 1e-4  # losses differ by the order of additions alone
LOOK_S = 0.25
LONGEST_S = 300.0


@dataclass(frozen=True)
class Step:
    """The losses after so many steps."""

    step: int
    cpu: float
    cards: float

    @property
    def is_equal(self) -> bool:
        """Whether they differ by no more than the order of additions explains."""
        return abs(self.cpu - self.cards) <= ABSOLUTE + RELATIVE * abs(self.cpu)


@dataclass
class CardDemoReport:
    """What the demo has shown.

    Attributes:
        steps: The losses on both.
        figures: The last figures of the program, None if there were none.
        description: What the device was made of.
        trace: The trace file.
        events: How many events are in it.
    """

    steps: list[Step]
    figures: ProgramFigures | None
    description: str
    trace: Path
    events: int
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool:
        """Whether the losses are those of the CPU."""
        return bool(self.steps) and all(one.is_equal for one in self.steps)


def check_torch() -> None:
    """Raises `PenstockError` if torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise PenstockError(
            "the demo of the virtual card needs torch", "it is not installed beside penstock",
            "pip install 'penstock[torch]'", reason="unavailable",
        )  # fmt: skip


def run(
    steps: int, trace: Path, watch: Callable[[ProgramFigures], None] = lambda _: None
) -> CardDemoReport:
    """Runs the demo; `watch` gets new figures about once a second.

    Raises:
        PenstockError: torch is missing, or the program failed.
    """
    check_torch()
    variables = {VARIABLE: CARDS, TRACE_VARIABLE: str(trace)}
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
        program = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(steps)],
            env={**os.environ, **variables}, stdin=subprocess.DEVNULL, stdout=said, stderr=errors,
        )  # fmt: skip
        try:
            figures = _watched(program, watch)
        finally:
            program.kill()
            program.wait()
        said.seek(0)
        errors.seek(0)
        lines, complaints = said.read().splitlines(), errors.read()
    if program.returncode != 0:
        last = (complaints.strip().splitlines() or ["it said nothing"])[-1]
        raise PenstockError("the program of the demo failed", last, "report this with its output")
    return _report([json.loads(one) for one in lines], figures, trace)


def _watched(
    program: subprocess.Popen[bytes], watch: Callable[[ProgramFigures], None]
) -> ProgramFigures | None:
    """Waits for the program's end. Raises `PenstockError` if it does not come."""
    last: ProgramFigures | None = None
    end_s = time.monotonic() + LONGEST_S
    while program.poll() is None:
        if time.monotonic() > end_s:
            raise PenstockError(
                "the demo was ended", f"its program did not end in {LONGEST_S:.0f} s",
                "try again when the machine is idle",
            )  # fmt: skip
        time.sleep(LOOK_S)
        for one in read_all()[0]:
            if one.pid == program.pid and (last is None or one.written_s != last.written_s):
                last = one
                watch(one)
    return last


def _report(
    told: list[dict[str, object]], figures: ProgramFigures | None, trace: Path
) -> CardDemoReport:
    losses: dict[str, dict[int, float]] = {"cpu": {}, "penstock": {}}
    seconds: dict[str, float] = {}
    description = ""
    for one in told:
        device = str(one["device"])
        if "step" in one:
            losses[device][int(str(one["step"]))] = float(str(one["loss"]))
            seconds[device] = float(str(one["seconds"]))
        description = str(one.get("of", description))
    steps = [Step(step, loss, losses["penstock"][step]) for step, loss in losses["cpu"].items()]
    events = len(json.loads(trace.read_text(encoding="utf-8")))
    return CardDemoReport(steps, figures, description, trace, events, seconds)
