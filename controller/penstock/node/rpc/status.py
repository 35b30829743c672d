"""Errors over gRPC: a status code for programs, and three sentences for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from penstock.model import PenstockError
from penstock_api.v1 import agent_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.model.errors import Reason

TRAILER = "penstock-error-bin"
# A response's metadata is limited to 8 KiB by default; gRPC drops the connection if it is exceeded.
MOST_SENTENCE_BYTES = 600
CODES: dict[Reason, grpc.StatusCode] = {
    "invalid": grpc.StatusCode.INVALID_ARGUMENT,
    "no-such-tenant": grpc.StatusCode.NOT_FOUND,
    "exists": grpc.StatusCode.ALREADY_EXISTS,
    "not-enough-left": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "not-yours": grpc.StatusCode.PERMISSION_DENIED,
    "not-allowed": grpc.StatusCode.PERMISSION_DENIED,
    "not-now": grpc.StatusCode.FAILED_PRECONDITION,
    "timed-out": grpc.StatusCode.DEADLINE_EXCEEDED,
    "unavailable": grpc.StatusCode.UNAVAILABLE,
}


def trailer_of(error: PenstockError) -> tuple[tuple[str, bytes]]:
    """The trailing metadata that contains the three parts of `error`."""
    what, why, fix = (cut(sentence) for sentence in (error.what, error.why, error.fix))
    message = agent_pb2.Error(reason=error.reason, what=what, why=why, fix=fix)
    return ((TRAILER, message.SerializeToString()),)


async def abort(context: Any, error: PenstockError) -> None:  # noqa: ANN401 - grpc's context
    """Ends the call with `error` by raising grpc's abort exception."""
    await context.abort(CODES[error.reason], cut(str(error)), trailer_of(error))


def cut(text: str, most_bytes: int = MOST_SENTENCE_BYTES) -> str:
    """`text` cut to `most_bytes` of UTF-8, with "…" at the end if anything was cut."""
    raw = text.encode(errors="replace")
    if len(raw) <= most_bytes:
        return raw.decode()
    return raw[: most_bytes - 3].decode(errors="ignore") + "…"


def error_of(error: grpc.RpcError, target: str) -> PenstockError:
    """The error to show to the user for a failed call."""
    for key, value in _trailers(error):
        if key == TRAILER and isinstance(value, bytes):
            message = agent_pb2.Error.FromString(value)
            known: dict[str, Reason] = {word: word for word in CODES}
            reason = known.get(message.reason, "invalid")
            return PenstockError(message.what, message.why, message.fix, reason=reason)
    code = error.code()
    if code is grpc.StatusCode.UNAVAILABLE:
        return PenstockError(
            f"no agent answers at {target}", str(error.details()),
            "start it (penstock agent), or run without it: penstock run --no-agent",
            reason="unavailable",
        )  # fmt: skip
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return PenstockError(
            f"the agent at {target} did not respond in time", "it is busy or stopped, or it hangs",
            "try again; see the agent's log, and penstock doctor", reason="unavailable",
        )  # fmt: skip
    return PenstockError(
        f"the agent at {target} failed", f"{code.name}: {error.details()}", "see the agent's log",
        reason="unavailable",
    )  # fmt: skip


def has_error(error: grpc.RpcError) -> bool:
    """Whether the server itself said why the call failed."""
    return any(key == TRAILER for key, _ in _trailers(error))


def _trailers(error: grpc.RpcError) -> Sequence[tuple[str, str | bytes]]:
    trailers = getattr(error, "trailing_metadata", None)
    return tuple(trailers() or ()) if trailers is not None else ()
