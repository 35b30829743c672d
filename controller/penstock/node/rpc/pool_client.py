"""gRPC client of a compute pool: claims, their changes, and the pool's state and events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from penstock.model import PenstockError
from penstock.node.admission.checks import check_grace
from penstock.node.rpc.pool_target import (
    local_target,
    never_connected,
    pool_error_of,
    remote_targets,
    was_interrupted,
)
from penstock_api.v1 import pool_pb2 as pb
from penstock_api.v1 import pool_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from penstock.node.rpc.pool_claim import PoolClaim
    from penstock.node.rpc.pool_target import PoolTarget, Server

TIMEOUT_S = 10.0
SLACK_S = 15.0  # extra time that ending an application may take after its grace
RESIZE_S = 60.0
COMPACT_S = 24 * 3600.0  # the moves of a whole pool
# How long an interrupted call is sent again: if it was answered before, so that a manager knows it
# and may have granted it, and if it was not. A claim that may wait is sent again at least so long.
PATIENCE_S, FIRST_PATIENCE_S = 120.0, 10.0
LEAST_PAUSE_S, MOST_PAUSE_S = 0.1, 2.0  # between attempts
GRANTED = "running"
Answer = TypeVar("Answer")


class PoolClient:
    """A connection to a pool. Every method raises `PenstockError` if the call fails."""

    def __init__(self, targets: Sequence[PoolTarget]) -> None:
        """`targets`: servers of the same pool; the next one is tried when one does not answer."""
        self._targets = list(targets)
        self._channel: grpc.Channel | None = None
        self._made_stub: Any = None
        self._is_cancelled = False

    @classmethod
    def local(cls, file: Path, server: Server = "agent") -> Self:
        """The agent or the manager behind a unix socket. It may start later."""
        return cls([local_target(file, server)])

    @classmethod
    def remote(cls, addresses: str, certificate: Path, key: Path, authority: Path) -> Self:
        """Managers at `HOST:PORT[,HOST:PORT…]`, over mutual TLS with files in PEM format."""
        return cls(remote_targets(addresses, certificate, key, authority))

    @property
    def target(self) -> PoolTarget:
        """The server that calls go to now."""
        return self._targets[0]

    def acquire(
        self, claim: PoolClaim, interrupted: Callable[[PenstockError], None] | None = None
    ) -> Generator[pb.AcquireUpdate, None, None]:
        """Claims blocks: updates about the application until it runs.

        If the server goes away in the middle, the same claim is sent again, so that an application
        that was granted is not lost. Closing the iterator withdraws the claim.

        Args:
            claim: What is claimed.
            interrupted: Called with the reason when the server has gone away.

        Raises:
            PenstockError: the claim is refused, or nobody answers any more.
        """
        attempts = _Attempts(interrupted, claim.wait_ns / 1e9)
        granted: pb.AcquireUpdate | None = None
        while True:
            call = self._stub.Acquire(claim.message(), timeout=None)
            try:
                for update in call:
                    attempts.answered()
                    if update.application.phase == GRANTED:
                        granted = update  # until the stream has ended it may be withdrawn
                    else:
                        yield update
                if granted is not None:
                    yield granted
                    return
                error = _ended_early(self.target)
            except grpc.RpcError as failure:
                error = pool_error_of(failure, self.target)
                if self._is_cancelled or not was_interrupted(failure):
                    raise error from None
            finally:
                call.cancel()
            attempts.pause(error, len(self._targets))
            self._use_next()

    def release(
        self,
        name: str,
        grace_ns: int | None = None,
        reason: str = "",
        *,
        only: pb.Application | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Ends an application; returns when its processes have ended.

        `only`: the application that is meant. A later one of the same name is left alone.
        """
        request = pb.ReleaseRequest(name=name, reason=reason)
        if only is not None and only.HasField("claimed"):
            request.claimed.CopyFrom(only.claimed)
        if grace_ns is not None:
            check_grace(grace_ns)
            request.grace.FromNanoseconds(grace_ns)
        if timeout_s is None:
            timeout_s = (10.0 if grace_ns is None else grace_ns / 1e9) + SLACK_S
        self._call(pb.ReleaseResponse, "Release", request, timeout_s)

    def resize(self, name: str, blocks: int) -> pb.Application:
        """Changes how many blocks an application has."""
        request = pb.ResizeApplicationRequest(name=name, blocks=blocks)
        answer = self._call(pb.ResizeApplicationResponse, "ResizeApplication", request, RESIZE_S)
        return answer.application

    def keep_alive(self, names: Sequence[str]) -> Sequence[str]:
        """Says that the holder of applications is alive; returns those that do not exist."""
        request = pb.KeepAliveRequest(names=names)
        return self._call(pb.KeepAliveResponse, "KeepAlive", request).unknown

    def compact(self, *, full: bool = False, dry_run: bool = False) -> Iterator[pb.CompactUpdate]:
        """Moves applications together: the plan first, then each move as it ends."""
        request = pb.CompactRequest(full=full, dry_run=dry_run)
        yield from self._stream("Compact", request, TIMEOUT_S * 6 if dry_run else COMPACT_S)

    def pool(self, *, summary: bool = False) -> pb.PoolState:
        """The pool as it is; with `summary` without cards and applications."""
        return self._call(pb.PoolState, "GetPool", pb.GetPoolRequest(summary=summary))

    def why(self, name: str) -> pb.WhyResponse:
        """What an application waits for, and what would help."""
        return self._call(pb.WhyResponse, "Why", pb.WhyRequest(name=name))

    def why_claim(self, claim: PoolClaim) -> pb.WhyResponse:
        """What would become of a claim; nothing is claimed."""
        return self._call(pb.WhyResponse, "Why", pb.WhyRequest(claim=claim.message()))

    def watch(self, names: Sequence[str] = (), *, follow: bool = False) -> Iterator[pb.PoolEvent]:
        """Past events, oldest first; with `follow`, also new ones until the caller stops.

        When the server goes away, the iteration goes on with the next one that answers; no event
        comes twice.
        """
        request = pb.WatchRequest(names=names, follow=follow)
        attempts, last = _Attempts(), (-1, -1)
        while True:
            try:
                for event in self._stub.Watch(request, timeout=None if follow else TIMEOUT_S):
                    attempts.answered()
                    at, number = event.time.ToNanoseconds(), event.number
                    if at <= last[0] and number <= last[1]:
                        continue  # it was sent by the server before
                    last = (at, number)
                    yield event
            except grpc.RpcError as failure:
                error = pool_error_of(failure, self.target)
                if self._is_cancelled or not was_interrupted(failure) or not follow:
                    raise error from None
            else:
                return
            attempts.pause(error, len(self._targets))
            self._use_next()

    def drain(self, node: str, *, stop: bool = False, now: bool = False) -> pb.PoolNode:
        """Takes a node out of the pool in order, or with `stop` lets it take new work again."""
        request = pb.DrainRequest(node=node, stop=stop, now=now)
        return self._call(pb.DrainResponse, "Drain", request).node

    def close(self) -> None:
        """Closes the connection."""
        if self._channel is not None:
            self._channel.close()
            self._channel = self._made_stub = None

    def cancel(self) -> None:
        """Ends the streams that other threads read; a claim that waits is withdrawn."""
        self._is_cancelled = True
        if self._channel is not None:
            self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _stub(self) -> Any:  # noqa: ANN401 - generated
        if self._channel is None:
            self._channel = self.target.open()
            self._made_stub = pool_pb2_grpc.PoolStub(self._channel)  # type: ignore[no-untyped-call] # generated
        return self._made_stub

    def _use_next(self) -> None:
        """Lets the next call go to the next server; a single one is connected to anew."""
        self.close()
        self._targets.append(self._targets.pop(0))

    def _call(
        self, kind: type[Answer], method: str, request: object, timeout_s: float = TIMEOUT_S
    ) -> Answer:
        deadline = time.monotonic() + timeout_s
        errors: list[PenstockError] = []
        while True:
            try:
                left_s = max(0.0, deadline - time.monotonic())
                answer = getattr(self._stub, method)(request, timeout=left_s)
                break
            except grpc.RpcError as failure:
                if self.target.was_crowded_out(failure) and time.monotonic() < deadline:
                    time.sleep(LEAST_PAUSE_S)
                    continue
                errors.append(pool_error_of(failure, self.target))
                is_last = len(errors) == len(self._targets)
                if failure.code() is not grpc.StatusCode.UNAVAILABLE or is_last:
                    raise _best(errors) from None
                self._use_next()
        if not isinstance(answer, kind):
            raise TypeError(f"{answer!r} is not a {kind.__name__}")
        return answer

    def _stream(self, method: str, request: object, timeout_s: float) -> Iterator[Any]:
        """Answers of a call that is not sent twice once it was answered."""
        errors: list[PenstockError] = []
        while True:
            is_answered = False
            try:
                for answer in getattr(self._stub, method)(request, timeout=timeout_s):
                    is_answered = True
                    yield answer
            except grpc.RpcError as failure:
                errors.append(pool_error_of(failure, self.target))
                is_last = len(errors) == len(self._targets)
                if is_answered or not never_connected(failure) or is_last:
                    raise errors[-1] from None
            else:
                return
            self._use_next()


class _Attempts:
    """When an interrupted call is sent again, and when it is given up."""

    def __init__(
        self, interrupted: Callable[[PenstockError], None] | None = None, wait_s: float = 0.0
    ) -> None:
        self._interrupted = interrupted
        self._until_s = time.monotonic() + wait_s
        self._is_answered = False
        self._since_s: float | None = None  # when the interruption began
        self._count = 0

    def answered(self) -> None:
        """Notes that the server answers."""
        self._is_answered, self._since_s, self._count = True, None, 0

    def pause(self, error: PenstockError, targets: int) -> None:
        """Waits before the next attempt. Raises `error` if it is time to give up."""
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s = now_s
            if self._interrupted is not None:
                self._interrupted(error)
        patience_s = PATIENCE_S if self._is_answered else FIRST_PATIENCE_S
        if now_s > max(self._since_s + patience_s, self._until_s):
            raise error
        self._count += 1
        rounds = self._count // targets  # each server is tried before a longer pause
        time.sleep(min(MOST_PAUSE_S, LEAST_PAUSE_S * 2 ** min(rounds, 10)))


def _ended_early(target: PoolTarget) -> PenstockError:
    return PenstockError(
        f"the {target.server} at {target.address} ended a claim without an answer",
        "it is stopping, or it has a fault", f"see the {target.server}'s log",
        reason="unavailable",
    )  # fmt: skip


def _best(errors: list[PenstockError]) -> PenstockError:
    """One error for all servers that were tried."""
    if len(errors) == 1 or errors[-1].reason != "unavailable":
        return errors[-1]
    return PenstockError(
        "no manager of the pool answers",
        "; ".join(f"{one.what} ({one.why})" if one.why else one.what for one in errors),
        "check the addresses and the certificates, and whether a manager runs",
        reason="unavailable",
    )
