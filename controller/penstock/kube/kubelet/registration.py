"""Driver registration: the sockets of the DRA driver, which the kubelet discovers by itself."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING, Any

import grpc

from penstock.kube.objects.names import DRIVER
from penstock.model import PenstockError
from penstock_api.kubelet import (
    dra_health_v1alpha1_pb2_grpc,
    dra_v1_pb2_grpc,
    registration_v1_pb2_grpc,
)
from penstock_api.kubelet import registration_v1_pb2 as pb

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from penstock.kube.kubelet.device_health import Health
    from penstock.kube.kubelet.dra_driver import Driver

SERVICES = ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth")
STOP_WITHIN_S = 5.0
Log = Any  # log(event, **fields)


class Registration(registration_v1_pb2_grpc.RegistrationServicer):
    """The gRPC service that identifies the driver to the kubelet."""

    def __init__(self, endpoint: Path, log: Log) -> None:
        self.is_registered = False
        self._endpoint = endpoint
        self._log = log

    async def GetInfo(  # noqa: N802 - kubelet's name for it
        self,
        request: pb.InfoRequest,  # noqa: ARG002 - it is empty
        context: object,  # noqa: ARG002 - of no use
    ) -> pb.PluginInfo:
        """Returns the driver's name, endpoint and services."""
        return pb.PluginInfo(
            type="DRAPlugin",
            name=DRIVER,
            endpoint=str(self._endpoint),
            supported_versions=SERVICES,
        )

    async def NotifyRegistrationStatus(  # noqa: N802 - kubelet's name for it
        self,
        request: pb.RegistrationStatus,
        context: object,  # noqa: ARG002 - of no use
    ) -> pb.RegistrationStatusResponse:
        """Notes whether the kubelet registered the driver."""
        self.is_registered = request.plugin_registered
        if request.plugin_registered:
            self._log("registered", driver=DRIVER)
        else:
            self._log("not registered", driver=DRIVER, why=request.error)
        return pb.RegistrationStatusResponse()


class Sockets:
    """Both sockets of the driver, as a context manager; replaces those of a killed process."""

    def __init__(self, kubelet_dir: Path, driver: Driver, health: Health, log: Log) -> None:
        self._folder = kubelet_dir / "plugins" / DRIVER
        self._endpoint = self._folder / "dra.sock"
        self._door = kubelet_dir / "plugins_registry" / f"{DRIVER}-reg.sock"
        self.registration = Registration(self._endpoint, log)
        self._driver = driver
        self._health = health
        self._servers: list[grpc.aio.Server] = []
        self._lock = -1

    async def __aenter__(self) -> Self:
        """Serves; raises `PenstockError` for a wrong directory, or if another process serves."""
        try:
            self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._lock = os.open(
                self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            serving = grpc.aio.server()
            dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(self._driver, serving)  # type: ignore[no-untyped-call] # generated
            dra_health_v1alpha1_pb2_grpc.add_DRAResourceHealthServicer_to_server(  # type: ignore[no-untyped-call] # generated
                self._health, serving
            )
            await self._start(serving, self._endpoint)
            door = grpc.aio.server()
            registration_v1_pb2_grpc.add_RegistrationServicer_to_server(self.registration, door)  # type: ignore[no-untyped-call] # generated
            await self._start(door, self._door)  # last, as the kubelet calls at once
        except BlockingIOError as error:
            await self.close()
            raise PenstockError(
                "this node's driver runs already", f"{self._folder}/lock is held",
                "end the other process first", reason="not-now",
            ) from error  # fmt: skip
        except (OSError, RuntimeError) as error:
            await self.close()
            raise PenstockError(
                f"the driver's sockets cannot be created below {self._folder.parents[1]}",
                str(error),
                "give --kubelet-dir the kubelet's own directory, and run as root",
            ) from error
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Lets calls end, removes the sockets: the kubelet then treats the driver as gone."""
        self._health.end()
        for server in reversed(self._servers):
            await server.stop(STOP_WITHIN_S)
        if self._servers:
            for file in (self._door, self._endpoint):
                with contextlib.suppress(OSError):
                    file.unlink()
        self._servers.clear()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    async def _start(self, server: grpc.aio.Server, file: Path) -> None:
        file.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        file.unlink(missing_ok=True)  # left by a killed process: the lock shows that it is gone
        server.add_insecure_port(f"unix:{file}")
        await server.start()
        file.chmod(0o600)
        self._servers.append(server)
