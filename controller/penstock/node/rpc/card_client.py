"""gRPC client of the service Cards of this node's agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from penstock.node.agent.card_workers import STARTS_WITHIN_S
from penstock.node.rpc.client import entrance_of, local_channel
from penstock.node.rpc.status import error_of
from penstock_api.v1 import cards_pb2 as pb
from penstock_api.v1 import cards_pb2_grpc

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

SLACK_S = 20.0  # for the agents on the way


class CardClient:
    """A connection to this node's agent; use it as a context manager. For one thread at a time."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._channel = local_channel(entrance_of(file))

    def start(self, request: pb.StartCardRequest) -> pb.StartCardResponse:
        """Starts a card's worker. Raises `PenstockError` if it cannot be started."""
        stub: Any = cards_pb2_grpc.CardsStub(self._channel)  # type: ignore[no-untyped-call]
        try:
            answer = stub.Start(request, timeout=STARTS_WITHIN_S + SLACK_S)
        except grpc.RpcError as error:
            raise error_of(error, str(self._file)) from None
        if not isinstance(answer, pb.StartCardResponse):
            raise TypeError(f"{answer!r} is no answer")
        return answer

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
