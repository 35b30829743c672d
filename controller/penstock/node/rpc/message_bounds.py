"""Size limits of message fields: one caller's fields must not make lists too long to send."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model import PenstockError, printable
from penstock.model.names import MAX_TENANT_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock_api.v1 import agent_pb2 as pb

MOST_COMMAND_BYTES = 64 << 10  # all words together
KEPT_COMMAND_BYTES = 4096  # the first of these are stored
MOST_LABELS, MOST_LABEL_BYTES = 64, 256
MOST_LABELS_BYTES = 16 << 10  # all labels together
MOST_POLICY_NAME_BYTES = 253  # as in Kubernetes; stored with metered usage
MOST_REASON_BYTES = 1024
MOST_WORDS, MOST_WORD_BYTES = 64, 4096  # devices, candidates; a policy's name and place
MOST_ID_BYTES = 256


def check_request(message: pb.GrantRequest) -> None:
    """Raises `PenstockError` when a field exceeds its size limit."""
    check_names([message.name])
    _within("command", sum(map(_length, message.command)), MOST_COMMAND_BYTES)
    _within("the labels", len(message.labels), MOST_LABELS, "in number")
    for key, value in message.labels.items():
        _within("a label's key", _length(key), MOST_LABEL_BYTES)
        _within("a label's value", _length(value), MOST_LABEL_BYTES)
    total = sum(_length(key) + _length(value) for key, value in message.labels.items())
    _within("the labels", total, MOST_LABELS_BYTES, "bytes together")
    name = message.policy.partition(" (")[0]  # without its place, "(file:line)"
    _within("the policy's name", _length(name), MOST_POLICY_NAME_BYTES)
    for field in ("devices", "candidates", "memory_bytes", "cores_permille"):
        _within(field, len(getattr(message, field)), MOST_WORDS, "in number")
    for word in (*message.devices, *message.candidates, message.policy):
        _within("a device's or policy's name", _length(word), MOST_WORD_BYTES)
    _within("request_id", _length(message.request_id), MOST_ID_BYTES)


def check_names(names: Sequence[str]) -> None:
    """Raises `PenstockError` for impossible tenant names, or too many of them."""
    _within("the names", len(names), 4096, "in number")
    for name in names:
        _within("a tenant's name", len(name), MAX_TENANT_NAME, "characters")


def check_reason(reason: str) -> None:
    """Raises `PenstockError` for a reason that is too long."""
    _within("the reason", _length(reason), MOST_REASON_BYTES)


def shortened(command: Iterable[str], most_bytes: int = MOST_COMMAND_BYTES) -> list[str]:
    """The first words of `command` that fit, and "…" where some do not; for display."""
    words: list[str] = []
    left = most_bytes - len("…".encode())
    for word in command:
        left -= _length(word)
        if left < 0:
            return [*words, "…"]
        words.append(printable(word))
    return words


def _length(text: str) -> int:
    return len(text.encode(errors="replace"))


def _within(what: str, size: int, most: int, unit: str = "bytes") -> None:
    if size > most:
        raise PenstockError(
            f"{what} exceeds its limit: {size} {unit}", f"the limit is {most}",
            "shorten it",
        )  # fmt: skip
