"""Size limits of message fields, so that one caller's fields cannot make lists too long to send."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model import PenstockError, printable
from penstock.model.names import MAX_TENANT_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock_api.v1 import agent_pb2 as pb

MOST_COMMAND_BYTES = 64 << 10  # of all words together
KEPT_COMMAND_BYTES = 4096  # how much of a command is stored
MOST_LABELS, MOST_LABEL_BYTES = 64, 256
MOST_LABELS_BYTES = 16 << 10  # of all labels together
MOST_POLICY_NAME_BYTES = 253  # as in Kubernetes; the name is stored with metered usage
MOST_REASON_BYTES = 1024
MOST_WORDS, MOST_WORD_BYTES = 64, 4096  # of devices, candidates, and policies with location
MOST_ID_BYTES = 256


def check_request(message: pb.GrantRequest) -> None:
    """Raises `PenstockError` if a field exceeds its size limit."""
    check_names([message.name])
    _within("command", sum(map(_length, message.command)), MOST_COMMAND_BYTES)
    check_labels(message.labels)
    name = message.policy.partition(" (")[0]  # without its location, "(file:line)"
    _within("the policy's name", _length(name), MOST_POLICY_NAME_BYTES)
    for field in ("devices", "candidates", "memory_bytes", "cores_permille"):
        _within(field, len(getattr(message, field)), MOST_WORDS, "entries")
    for word in (*message.devices, *message.candidates, message.policy):
        _within("a device's or policy's name", _length(word), MOST_WORD_BYTES)
    _within("request_id", _length(message.request_id), MOST_ID_BYTES)


def check_labels(labels: Mapping[str, str]) -> None:
    """Raises `PenstockError` if there are too many labels, or if one is too long."""
    _within("the labels", len(labels), MOST_LABELS, "entries")
    for key, value in labels.items():
        _within("a label's key", _length(key), MOST_LABEL_BYTES)
        _within("a label's value", _length(value), MOST_LABEL_BYTES)
    total = sum(_length(key) + _length(value) for key, value in labels.items())
    _within("the labels", total, MOST_LABELS_BYTES, "bytes in total")


def check_names(names: Sequence[str]) -> None:
    """Raises `PenstockError` if a tenant name is impossible, or if there are too many names."""
    _within("the names", len(names), 4096, "entries")
    for name in names:
        _within("a tenant's name", len(name), MAX_TENANT_NAME, "characters")


def check_reason(reason: str) -> None:
    """Raises `PenstockError` if a reason is too long."""
    _within("the reason", _length(reason), MOST_REASON_BYTES)


def shortened(command: Iterable[str], most_bytes: int = MOST_COMMAND_BYTES) -> list[str]:
    """The first words of `command` that fit, followed by "…" if some do not, for display."""
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
            f"{what}: {size} {unit} exceed the limit", f"at most {most} are allowed",
            "shorten it, or send fewer",
        )  # fmt: skip
