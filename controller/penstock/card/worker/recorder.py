"""`Recorder`: what a card's worker does, event by event, while a trace is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_api.v1 import card_ops_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

OPERATIONS, WAITS = 1, 2  # tracks
_MOST = 4096  # events in one frame
_PERIOD_NS = 200_000_000


class Recorder:
    """Events of one card, sent to the program when there are many, and several times a second."""

    def __init__(self, send: Callable[[bytes], None], used_bytes: Callable[[], int]) -> None:
        """`used_bytes`: the card's memory in use, which is sent with the events."""
        self._send = send
        self._used_bytes = used_bytes
        self._names: dict[str, int] = {}
        self._events = pb.TraceEvents()
        self._sent_ns = 0

    def operation(self, name: str, began_ns: int, ended_ns: int, size_bytes: int) -> None:
        """The card has executed an operation that makes so many bytes."""
        self._add(OPERATIONS, name, began_ns, ended_ns, size_bytes)

    def wait(self, name: str, began_ns: int, ended_ns: int, size_bytes: int) -> None:
        """The card has waited, for the program or in an exchange of so many bytes."""
        self._add(WAITS, name, began_ns, ended_ns, size_bytes)

    def _add(self, track: int, name: str, began_ns: int, ended_ns: int, size_bytes: int) -> None:
        number = self._names.get(name)
        events = self._events
        if number is None:
            number = self._names[name] = len(self._names)
            events.names.append(name)
        events.name.append(number)
        events.track.append(track)
        events.start_ns.append(began_ns)
        events.duration_ns.append(ended_ns - began_ns)
        events.size_bytes.append(size_bytes)
        if len(events.name) >= _MOST:
            self.send(ended_ns)

    def send_if_due(self, now_ns: int) -> None:
        """Sends the events if those before were sent some time ago."""
        if now_ns - self._sent_ns > _PERIOD_NS:
            self.send(now_ns)

    def send(self, now_ns: int) -> None:
        """Sends the events that there are."""
        self._sent_ns = now_ns
        if not self._events.name:
            return
        self._events.at_ns, self._events.used_bytes = now_ns, self._used_bytes()
        body = self._events.SerializeToString()
        self._events, self._names = pb.TraceEvents(), {}
        self._send(body)
