"""Serving a link: a worker executes the frames of a front-end in order."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.card.link import faults
from penstock.card.link.errors import ProtocolError
from penstock.card.link.frame import (
    ERROR,
    EVENT,
    FAULT,
    GOODBYE,
    PING,
    PONG,
    RELEASED,
    REPLY,
    SHARED,
    Frame,
    Header,
    Part,
)
from penstock.card.link.handshake import parsed, releases
from penstock.card.link.inbox import Inbox
from penstock.card.link.kinds import Kinds
from penstock_api.v1 import card_pb2 as pb

if TYPE_CHECKING:
    from penstock.card.link.connection import Connection
    from penstock.card.link.frame import Buffers
    from penstock.card.link.shared_memory import SlotReader

Handler = Callable[[int, int, memoryview], "Part | Sequence[Part] | None"]
EXIT_DONE = 0  # the front-end said goodbye
EXIT_FRONT_END_GONE = 75  # the front-end went away without a goodbye
EXIT_PROTOCOL = 76  # the front-end broke the protocol

_REPORT_PERIOD_S = 0.6  # without a ping
_REMOTE_SILENT_S = 60.0


def serve(
    connection: Connection,
    handler: Handler,
    *,
    kinds: Mapping[int, str],
    inbox_bytes: int = 64 << 20,
    grace_s: float = 2.0,
    silent_s: float | None = None,
    shares_memory: bool = False,
) -> int:
    """Calls `handler(kind, number, body)` for each frame, until the front-end goes away.

    The handler runs in the calling thread. `number` is 0 for a frame without a reply. Else what it
    returns is sent as the reply: it is written before the next frame is executed, so it may be a
    view of memory that later frames change. An exception of the handler becomes the reply, or, of
    a frame without a reply, a fault at the front-end; the worker goes on. `body` belongs to the
    handler.

    A reader thread takes at most `inbox_bytes` ahead, and one frame more. It answers pings, so the
    handler must not hold the interpreter's lock for more than a second, or the card seems to hang.

    Returns the code to exit with: `EXIT_DONE`, `EXIT_FRONT_END_GONE` or `EXIT_PROTOCOL`. When the
    front-end has gone away without a goodbye, frames that were not begun are dropped; if the
    process has not ended `grace_s` later, for example because the handler still runs, the reader
    thread ends it with that code. `silent_s`: the front-end is gone, too, if nothing has come from
    it for so long; None: 60 s over TCP, where a broken network shows in no other way, never else,
    where the kernel tells, and a front-end that is only stopped (Ctrl-Z) may go on.

    `shares_memory`: bodies from 512 KiB to 2 MiB (`SLOT_BYTES`) of a front-end on this node come
    through shared memory, which is about twice as fast. Such a body cannot be written to and is
    gone when the handler returns: the handler must copy what it keeps. A body that something still
    refers to then ends the worker, but slices of it are not noticed.
    """
    inbox = Inbox(inbox_bytes)
    try:
        slots = connection.take_memory(wanted=shares_memory)
    except ProtocolError as error:
        connection.say_goodbye(f"{error}; {releases(connection.release)}")
        return EXIT_PROTOCOL
    executing = _Executing(connection, inbox, handler, slots)
    if silent_s is None and connection.stream.is_remote:
        silent_s = _REMOTE_SILENT_S
    reader = _Reader(connection, inbox, executing, Kinds(kinds), silent_s=silent_s, grace_s=grace_s)
    try:
        threading.Thread(target=reader.run, name="front-end reader", daemon=True).start()
        return executing.run()
    except BaseException:  # nobody would execute what the reader goes on to receive
        connection.stream.shut()
        raise


class _Executing:
    """Executes frames, in the thread of `serve`."""

    def __init__(
        self, connection: Connection, inbox: Inbox, handler: Handler, slots: SlotReader | None
    ) -> None:
        self._connection = connection
        self._inbox = inbox
        self._handler = handler
        # Position and kind of a frame, and when it began: set as a whole, read by the reader.
        self.doing: tuple[int, int, float] = (0, 0, time.monotonic())
        self.slots = slots
        self.is_done = False  # all frames before the front-end's goodbye were executed

    def run(self) -> int:
        position = 0
        while True:
            frame = self._inbox.take()
            if isinstance(frame, int):
                return frame
            try:
                if frame.kind == GOODBYE:
                    self._say_goodbye()
                    return EXIT_DONE
                position += 1
                self.doing = (position, frame.kind, time.monotonic())
                answer = self._execute(frame, position)
                if answer is not None:
                    self._connection.send(answer)
                if frame.slot is not None and self.slots is not None:
                    released = self.slots.release(frame.slot, frame.body)
                    self._connection.send(self._connection.encode(RELEASED, 0, 0, [released]))
            except OSError:  # of the connection: the handler's own errors do not come here
                return EXIT_FRONT_END_GONE
            self.doing = (position, 0, time.monotonic())
            del frame, answer  # both may be large, and the next frame may be long in coming

    def _say_goodbye(self) -> None:
        self.is_done = True
        said = pb.CardGoodbye(release=__version__)
        self._connection.send(self._connection.encode(GOODBYE, 0, 0, [said.SerializeToString()]))

    def _execute(self, frame: Frame, position: int) -> Buffers | None:
        """Executes a frame; returns the frame that answers it, if any."""
        kind, number = frame.kind, frame.number
        try:
            made = self._handler(kind, number, frame.body)
            if not number:
                return None
            parts = [made] if isinstance(made, Part) else (made or ())
            return self._connection.encode(kind, REPLY, number, parts)
        except Exception as error:  # noqa: BLE001 - whatever it is, the program is told
            body = faults.to_body(error, position, kind)
        if number:
            return self._connection.encode(kind, REPLY | ERROR, number, [body])
        return self._connection.encode(FAULT, EVENT, 0, [body])


class _Reader:
    """Receives frames, answers pings, and ends the process when the front-end is gone."""

    def __init__(
        self,
        connection: Connection,
        inbox: Inbox,
        executing: _Executing,
        kinds: Kinds,
        *,
        silent_s: float | None,
        grace_s: float,
    ) -> None:
        self._connection = connection
        self._stream = connection.stream
        self._inbox = inbox
        self._executing = executing
        self._kinds = kinds
        self._silent_s = silent_s
        self._grace_s = grace_s
        self._reported_s = time.monotonic()
        self._ping = 0
        self._slots = executing.slots
        self._is_over = False  # the front-end said goodbye
        connection.decoder.on_header = self._on_header

    def run(self) -> None:
        """The reader thread."""
        code = EXIT_PROTOCOL  # also after an error of its own
        try:
            self._read()
            code = EXIT_FRONT_END_GONE
        except OSError:
            code = EXIT_FRONT_END_GONE
        except ProtocolError as error:
            why = f"{error}; {releases(self._connection.release)}"
            self._connection.say_goodbye(why)
        finally:
            self._inbox.end(code)
            if not self._executing.is_done:
                time.sleep(self._grace_s)
                os._exit(code)

    def _read(self) -> None:
        """Returns when the front-end is gone."""
        decoder, heard_s = self._connection.decoder, time.monotonic()
        while True:
            while (frame := decoder.next()) is not None:
                self._take(frame)
            try:
                count = self._stream.receive(decoder.room(), _REPORT_PERIOD_S)
            except TimeoutError:
                if self._silent_s is not None and time.monotonic() - heard_s > self._silent_s:
                    return
            else:
                if not count:
                    return
                decoder.filled(count)
                heard_s = time.monotonic()
            self._report_if_due()

    def _take(self, frame: Frame) -> None:
        """Answers a ping, or puts the frame in. Raises OSError if the front-end goes away."""
        if frame.kind == PING:
            self._ping = parsed(pb.CardPing(), frame.body).number
            self._report()
            return
        if frame.flags & SHARED and self._slots is not None:
            slot, body = self._slots.body(frame.body)
            frame = Frame(frame.kind, 0, frame.number, body, slot)
        while not self._inbox.wait_for_room(_REPORT_PERIOD_S):
            # Nothing is received meanwhile: a report that cannot be sent shows that it is gone.
            self._report()
        self._inbox.put(frame)
        self._is_over = frame.kind == GOODBYE

    def _on_header(self, header: Header) -> None:
        kind = header.kind
        allowed = SHARED if self._slots is not None and self._kinds.is_known(kind) else 0
        if (
            (self._is_over and kind != PING)
            or header.flags & ~allowed
            or (header.number and not self._kinds.is_known(kind))
        ):
            raise ProtocolError(f"a frame of kind {kind} is not allowed here")
        if kind not in {PING, GOODBYE} and not self._kinds.is_known(kind):
            raise ProtocolError(f"a frame has the unknown kind {kind}")

    def _report_if_due(self) -> None:
        if time.monotonic() - self._reported_s >= _REPORT_PERIOD_S:
            self._report()

    def _report(self) -> None:
        position, kind, since_s = self._executing.doing
        self._reported_s = now_s = time.monotonic()
        pong = pb.CardPong(
            number=self._ping, position=position, kind=kind, since_ms=int((now_s - since_s) * 1000)
        )
        self._connection.send_soon(PONG, pong.SerializeToString())
