"""gRPC client of the agent. Every call except a stream has a deadline."""

from __future__ import annotations

import os
import socket
import struct
import time
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from penstock.node.admission.checks import check_grace
from penstock.node.rpc import convert
from penstock.node.rpc.status import error_of
from penstock.node.tenants.state import State, agent_sockets
from penstock_api.v1 import agent_pb2 as pb
from penstock_api.v1 import agent_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from penstock.node.admission.admit import Request
    from penstock.node.admission.resize import Resize
    from penstock.node.metering.usage import By, Usage

TIMEOUT_S = 10.0
MOST_ANSWER_BYTES = 64 << 20  # enough for hundreds of tenants with all fields at full length
AGAIN_S = 0.1  # between connection attempts
PROBE_S = 2
_NOT_CONNECTED = "failed to connect to all addresses"
SLACK_S = 15.0  # extra time that ending a tenant may take after its grace
_OPTIONS = [("grpc.max_receive_message_length", MOST_ANSWER_BYTES)]
Answer = TypeVar("Answer")


class AgentClient:
    """A connection to an agent. Every method raises `PenstockError` if the call fails."""

    def __init__(self, channel: grpc.Channel, target: str, entrance: Path | None = None) -> None:
        """`entrance`: the local socket that the channel connects to."""
        self._target = target
        self._use(channel, entrance)

    @classmethod
    def local(cls, file: Path) -> Self:
        """The agent behind a local socket. The agent may start later."""
        entrance = entrance_of(file)
        return cls(local_channel(entrance), str(file), entrance)

    @classmethod
    def remote(cls, address: str, certificate: Path, key: Path, authority: Path) -> Self:
        """The agent at `host:port`, over mutual TLS with files in PEM format."""
        credentials = grpc.ssl_channel_credentials(
            authority.read_bytes(), key.read_bytes(), certificate.read_bytes()
        )
        return cls(grpc.secure_channel(address, credentials, _OPTIONS), address)

    def node(self) -> pb.Node:
        """The node's devices, and the state of its agent."""
        return self._call(pb.Node, self._stub.GetNode, pb.GetNodeRequest())

    def grant(self, request: Request) -> pb.GrantResponse:
        """Creates a tenant."""
        return self._call(pb.GrantResponse, self._stub.Grant, convert.request_to(request))

    def resize(self, name: str, change: Resize) -> pb.ResizeResponse:
        """Changes a tenant's quota."""
        return self._call(pb.ResizeResponse, self._stub.Resize, convert.resize_to(name, change))

    def suspend(self, name: str, reason: str = "", *, release_memory: bool = False) -> pb.Tenant:
        """Blocks a tenant's launches, and begins to release its device memory if that is wanted."""
        request = pb.SuspendRequest(name=name, reason=reason, release_memory=release_memory)
        return self._call(pb.SuspendResponse, self._stub.Suspend, request).tenant

    def resume(self, name: str, devices: Sequence[str] = ()) -> pb.Tenant:
        """Allows a tenant's launches again, once its memory is on its devices or on `devices`."""
        request = pb.ResumeRequest(name=name, devices=devices)
        return self._call(pb.ResumeResponse, self._stub.Resume, request).tenant

    def revoke(self, name: str, grace_ns: int, reason: str = "") -> pb.RevokeResponse:
        """Ends a tenant; returns when its processes have ended."""
        check_grace(grace_ns)
        request = pb.RevokeRequest(name=name, reason=reason)
        request.grace.FromNanoseconds(grace_ns)
        return self._call(pb.RevokeResponse, self._stub.Revoke, request, grace_ns / 1e9 + SLACK_S)

    def release_driver(self, reason: str) -> None:
        """Makes the agent close the driver, so that all devices are lost until `reopen_driver`."""
        request = pb.ReleaseDriverRequest(reason=reason)
        self._call(pb.ReleaseDriverResponse, self._stub.ReleaseDriver, request)

    def reopen_driver(self) -> None:
        """Makes the agent open the driver again."""
        self._call(pb.ReopenDriverResponse, self._stub.ReopenDriver, pb.ReopenDriverRequest())

    def tenants(self) -> Sequence[pb.Tenant]:
        """All tenants of the node."""
        return self._call(
            pb.ListTenantsResponse, self._stub.ListTenants, pb.ListTenantsRequest()
        ).tenants

    def events(self, tenants: Sequence[str] = (), *, follow: bool = False) -> Iterator[pb.Event]:
        """Past events, oldest first; with `follow`, also new ones until the caller stops."""
        request = pb.WatchEventsRequest(tenants=tenants, follow=follow)
        yield from self._stream(self._stub.WatchEvents, request, None if follow else TIMEOUT_S)

    def usage(
        self, interval_s: float = 1.0, tenants: Sequence[str] = ()
    ) -> Iterator[pb.UsageReport]:
        """Usage reports of tenants, one in each interval, until the caller stops."""
        request = pb.StreamUsageRequest(tenants=tenants)
        request.interval.FromNanoseconds(int(interval_s * 1e9))
        yield from self._stream(self._stub.StreamUsage, request, None)

    def used(
        self, since_s: int, until_s: int, *, by: By = "tenant", tenant: str | None = None
    ) -> Usage:
        """Metered usage of tenants from `since_s` to `until_s`, in seconds since 1970."""
        from penstock.node.rpc.usage_query import (  # imports SQLite, so only when needed
            usage_of,
            usage_request,
        )

        request = usage_request(since_s, until_s, by, tenant)
        return usage_of(request, self._call(pb.QueryUsageResponse, self._stub.QueryUsage, request))

    def _use(self, channel: grpc.Channel, entrance: Path | None) -> None:
        self._channel, self._entrance = channel, entrance
        self._made_stub: Any = agent_pb2_grpc.AgentStub(channel)  # type: ignore[no-untyped-call] # generated

    @property
    def _stub(self) -> Any:  # noqa: ANN401 - generated
        """The API, through the admin socket as soon as an agent that started later has created it.

        Calls in progress keep the earlier channel.
        """
        if self._entrance is not None and str(self._entrance) == self._target:
            entrance = entrance_of(self._entrance)
            if entrance != self._entrance:
                self._use(local_channel(entrance), entrance)
        return self._made_stub

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(
        self,
        kind: type[Answer],
        method: Callable[..., object],
        request: object,
        timeout_s: float = TIMEOUT_S,
    ) -> Answer:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                answer = method(request, timeout=max(0.0, deadline - time.monotonic()))
                break
            except grpc.RpcError as error:
                if not self._was_crowded_out(error) or time.monotonic() + AGAIN_S > deadline:
                    raise error_of(error, self._target) from None
            time.sleep(AGAIN_S)
        if not isinstance(answer, kind):
            raise TypeError(f"{answer!r} is not a {kind.__name__}")
        return answer

    def _was_crowded_out(self, error: grpc.RpcError) -> bool:
        """Whether the running agent's full accept queue refused us, so that nothing was sent.

        gRPC does not wait for space in the kernel's queue, but a blocking connect does.
        """
        return (
            self._entrance is not None
            and error.code() is grpc.StatusCode.UNAVAILABLE
            and str(error.details()).startswith(_NOT_CONNECTED)
            and listens(self._entrance)
        )

    def _stream(
        self, method: Callable[..., Iterator[Answer]], request: object, timeout_s: float | None
    ) -> Iterator[Answer]:
        try:
            yield from method(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise error_of(error, self._target) from None


def local_channel(socket_file: Path) -> grpc.Channel:
    """A channel to the server behind a unix socket."""
    # Proxies in the environment are for the network. The authority has no path, because some
    # servers reject an authority with a path. A restarted agent is back within two seconds, and
    # connected clients must notice that quickly, not minutes later.
    options = [
        ("grpc.enable_http_proxy", 0),
        ("grpc.default_authority", "localhost"),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        *_OPTIONS,
    ]
    return grpc.insecure_channel(f"unix:{socket_file}", options)


def find_agent(state_dir: Path | None = None) -> AgentClient | None:
    """The agent of `state_dir`, or by default the user's or the system's; None if none runs."""
    found = find_agent_socket(state_dir)
    return AgentClient.local(found) if found is not None else None


def find_agent_socket(state_dir: Path | None = None) -> Path | None:
    """The socket of the agent that `find_agent` would find, None if none runs."""
    return next((file for file in agent_sockets(state_dir) if _answers(file)), None)


def _answers(file: Path) -> bool:
    """Whether a trusted agent listens there; another user's socket does not count."""
    return is_trusted(file) and (entrance_of(file) != file or listens(file))


def entrance_of(file: Path) -> Path:
    """The admin socket beside `file` if this process may use it, otherwise `file`.

    Users cannot fill the queue of the admin socket.
    """
    for_admins = State(file.parent).admin_socket
    return for_admins if is_trusted(for_admins) and listens(for_admins) else file


def is_trusted(file: Path) -> bool:
    """Whether the file exists and belongs to root or to us."""
    try:
        return file.lstat().st_uid in (0, os.geteuid())
    except OSError:
        return False


def listens(file: Path) -> bool:
    """Whether a process listens there; waits up to PROBE_S for space in the queue."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            # With a socket timeout in Python, connect() would fail at once instead of waiting.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", PROBE_S, 0))
            probe.connect(str(file))
    except OSError:
        return False
    return True
