"""Faults: exceptions on a card, as they cross the link."""

from __future__ import annotations

from penstock.card.link.errors import OperationError
from penstock.card.link.handshake import parsed
from penstock_api.v1 import card_pb2 as pb

_MOST_TYPE_NAME = 128  # characters
_MOST_TEXT = 4096  # characters


def to_body(error: BaseException, position: int, kind: int) -> bytes:
    """The body of a frame that tells of an exception; a long text is cut."""
    try:
        text = str(error)
    except Exception as worse:  # noqa: BLE001 - whatever an exception's own code does
        text = f"(no text: {type(worse).__name__})"
    return pb.CardFault(
        type_name=_clean(type(error).__name__[:_MOST_TYPE_NAME]),
        text=_clean(text[:_MOST_TEXT]),
        position=position,
        kind=kind,
    ).SerializeToString()


def from_body(card: str, kind: str, body: memoryview) -> OperationError:
    """The error that a program sees. Raises `ProtocolError` if the body is no fault."""
    said = parsed(pb.CardFault(), body)
    type_name, text = said.type_name[:_MOST_TYPE_NAME], said.text[:_MOST_TEXT]
    return OperationError(card, kind, said.position, _clean(type_name), _clean(text))


def _clean(text: str) -> str:
    """The text without what a terminal would obey, or what is no Unicode."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text)
