"""Curves: the loss and the speed of a run over time, as event files for TensorBoard.

They are written where the package `tensorboard` is installed. Each attempt has a folder of its own
in the run's folder `tensorboard`, as its steps begin at 0 again.
"""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Any

from penstock.training.figures import programs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.card.published import ProgramFigures
    from penstock.training.run import Event, Run, State

FOLDER = "tensorboard"
LOOKS_S = 1.0  # programs publish as often
# The longer an attempt has run, the rarer its points, so that a week's file is no larger than 1 MB.
POINTS_PER_AGE = 1000


class Curves:
    """Writes what a run's program publishes, in a thread of its own, until it is closed.

    The run goes on whatever fails here.
    """

    def __init__(self, run: Run, state: Callable[[], State]) -> None:
        """`state`: how the run is."""
        self._run, self._state = run, state
        self._attempt = 0
        self._writer: Any = None
        self._began_s = self._next_s = 0.0  # of the attempt, its next point
        self._steps, self._loss_step = 0, 0
        self._told = len(run.events())
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="curves", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Writes the events that are left."""
        self._is_over.set()
        self._thread.join()

    def _follow(self) -> None:
        try:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ModuleNotFoundError:
            return  # nobody asked for it
        except (ImportError, TypeError, AttributeError) as error:  # packages that do not fit
            self._run.add_event("tensorboard-not-written", str(error))
            return
        try:
            is_over = False
            while not is_over:
                is_over = self._is_over.wait(LOOKS_S)
                self._look(EventFileWriter)
            if self._writer is not None:
                self._writer.close()
        except OSError as error:  # a full disk
            self._run.add_event("tensorboard-not-written", error.strerror or str(error))

    def _look(self, open_writer: Callable[[str], Any]) -> None:
        """Writes what is new. Raises `OSError`."""
        state = self._state()
        programs = programs_of(state.pid)
        if state.attempt != self._attempt:
            if self._writer is not None:
                self._writer.close()
            self._attempt, self._steps, self._loss_step = state.attempt, 0, 0
            self._began_s = self._next_s = time.monotonic()
            folder = self._run.folder / FOLDER / f"attempt-{state.attempt}"
            self._writer = open_writer(str(folder))
        if self._writer is None:
            return
        if programs and programs[0].steps > self._steps and time.monotonic() >= self._next_s:
            self._point(programs[0])
            age_s = time.monotonic() - self._began_s
            self._next_s = time.monotonic() + age_s / POINTS_PER_AGE
        events = self._run.events()
        for one in events[self._told :]:
            self._writer.add_event(_as_text(one, self._steps))
        self._told = len(events)
        self._writer.flush()

    def _point(self, program: ProgramFigures) -> None:
        self._steps = program.steps
        self._writer.add_event(_as_scalars(dict(_scalars(program)), program.written_s, self._steps))
        if program.loss_step > self._loss_step:  # of the step at which it was read
            self._loss_step = program.loss_step
            loss = program.loss if program.loss is not None else math.nan
            self._writer.add_event(_as_scalars({"loss": loss}, program.written_s, self._loss_step))


def _scalars(program: ProgramFigures) -> Iterator[tuple[str, float]]:
    yield "steps_per_s", program.steps_per_s
    if program.samples_per_s is not None:
        yield "samples_per_s", program.samples_per_s
    for i, card in enumerate(program.cards):
        name = f"{i} {card.kind} of {card.node}"
        yield f"share/{name}", card.share
        yield f"busy_percent/{name}", card.busy_percent
        if card.samples_per_s is not None:
            yield f"samples_per_s/{name}", card.samples_per_s


def _as_scalars(values: dict[str, float], at_s: float, step: int) -> object:
    """TensorBoard's event of some values."""
    from tensorboard.compat.proto.event_pb2 import Event as Point
    from tensorboard.compat.proto.summary_pb2 import Summary

    found = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
    return Point(wall_time=at_s, step=step, summary=Summary(value=found))


def _as_text(event: Event, step: int) -> object:
    """TensorBoard's event of a text."""
    from tensorboard.compat.proto.event_pb2 import Event as Point
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.text.metadata import create_summary_metadata

    said = f"{event.event}: {event.text}" if event.text else event.event
    value = Summary.Value(
        tag="events", metadata=create_summary_metadata("events", "What happened to the run."),
        tensor=TensorProto(dtype=DT_STRING, string_val=[said.encode()]),
    )  # fmt: skip
    return Point(wall_time=event.time, step=step, summary=Summary(value=[value]))
