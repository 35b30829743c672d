"""`Worker`: one card with its executor, made when the program has told it its place."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import torch

from penstock.card.adapters import open_adapter
from penstock.card.frames import Kind
from penstock.card.link import Description
from penstock.card.worker.collectives import Group
from penstock.card.worker.executor import Executor
from penstock_api.v1 import card_ops_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.card.adapters import Adapter
    from penstock.card.link import Connection
    from penstock.card.worker.standby import Turn

    Reply = Sequence[bytes | memoryview] | None


_MOST_TEXT = 2048  # characters of what an operation says when it fails


class Worker:
    """A card before and after its program has set it up.

    Attributes:
        kind: The card's, such as cuda:1.
    """

    def __init__(self, kind: str, most_bytes: int | None = None) -> None:
        """`most_bytes` is a simulated limit of the card's memory."""
        self.kind = kind
        self._most_bytes = most_bytes
        self._adapter: Adapter | None = None
        self._group: Group | None = None
        self._executor: Executor | None = None
        torch.set_grad_enabled(False)

    @property
    def description(self) -> Description:
        """What it tells of itself."""
        return Description(platform.node(), self.kind, torch.__version__)

    def open(self) -> Adapter:
        """The card's device, opened once. Raises `PenstockError` if there is no such card."""
        if self._adapter is None:
            self._adapter = open_adapter(self.kind)
        return self._adapter

    def handler(
        self, connection: Connection, turn: Turn | None = None
    ) -> Callable[[int, int, memoryview], Reply]:
        """What serves the frames of a connection. `turn` is taken before the card is opened."""

        def report(operation: str, error: Exception) -> None:
            connection.send_event(Kind.FAILED, _failure(operation, error).SerializeToString())

        def send_trace(body: bytes) -> None:
            connection.send_event(Kind.TRACED, body)

        def handle(kind: int, _: int, body: memoryview) -> Reply:
            if self._executor is not None:
                return self._executor.handle(kind, body)
            if kind == Kind.SET_UP and self._group is None:
                setup = pb.Setup.FromString(bytes(body))
                if turn is not None:
                    turn.take(setup.program)
                self.open()
                self._group = Group(setup.card, setup.cards, setup.host)
                return [pb.Meeting(said=self._group.said()).SerializeToString()]
            if kind == Kind.DISMISS and turn is not None:
                turn.dismiss()
                return [b""]
            if kind != Kind.MEET or self._group is None:
                raise ValueError("the first frames must set the card up")
            self._group.meet(pb.Meeting.FromString(bytes(body)).said)
            self._executor = Executor(
                self.open(), self._group, report, send_trace, self._most_bytes
            )
            return [b""]

        return handle


def _failure(operation: str, error: Exception) -> pb.Failure:
    text = str(error)[:_MOST_TEXT]
    is_memory = isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in text
    name = "OutOfMemoryError" if is_memory else type(error).__name__
    clean = text.encode(errors="replace").decode()
    return pb.Failure(operation=operation, type=name, text=clean)
