"""`torch.cuda.Stream` and `Event` for the virtual card, which does all in the program's order."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import torch

from penstock.card.device import module

if TYPE_CHECKING:
    from typing_extensions import Self

_CARD = torch.device("penstock", 0)


class Event:
    """`torch.cuda.Event`: a moment at which the cards had done all before it."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._at_s = 0.0

    def record(self, *_: Any) -> None:
        """Waits for the cards, and notes the time. Raises `CardError`."""
        module.synchronize()
        self._at_s = time.monotonic()

    def synchronize(self) -> None:
        """The cards have done all before it."""

    wait = synchronize

    def query(self) -> bool:
        """Always: `record` has waited."""
        return True

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds from this event to another one."""
        return (other._at_s - self._at_s) * 1000


class Stream:
    """`torch.cuda.Stream`: the cards do all in the order of the program, which no stream forbids.

    So streams of the program wait for each other without doing anything.
    """

    device_index = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self._former: list[Stream] = []

    @property
    def device(self) -> torch.device:
        """The card."""
        return _CARD

    def wait_stream(self, stream: Any) -> None:
        """What is told to the cards next comes after what was told them before."""

    wait_event = wait_stream

    def record_event(self, event: Event | None = None) -> Event:
        """A moment at which the cards have done all. Raises `CardError`."""
        event = Event() if event is None else event
        event.record()
        return event

    def synchronize(self) -> None:
        """Waits until the cards have done all. Raises `CardError`."""
        module.synchronize()

    def query(self) -> bool:
        """Whether the cards have done all; they have, because it waits. Raises `CardError`."""
        module.synchronize()
        return True

    def __enter__(self) -> Self:
        self._former.append(_current[0])
        _current[0] = self
        return self

    def __exit__(self, *_: object) -> None:
        _current[0] = self._former.pop()


_first = Stream()
_current = [_first]  # one


def current_stream(*_: Any, **__: Any) -> Stream:
    """The stream whose context the program is in."""
    return _current[0]


def default_stream(*_: Any, **__: Any) -> Stream:
    """The stream of a program that makes none."""
    return _first


def set_stream(stream: Stream | None) -> None:
    """Makes a stream the current one; None changes nothing."""
    if stream is not None:
        _current[0] = stream


def stream(stream: Stream | None) -> contextlib.AbstractContextManager[Any]:
    """A context in which a stream is the current one; None changes nothing."""
    return contextlib.nullcontext() if stream is None else stream
