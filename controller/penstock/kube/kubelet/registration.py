"""Driver registration: the sockets of the DRA driver, which the kubelet discovers on its own."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import grpc

from penstock.kube.kubelet.driver_lock import take_driver_lock
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
        """Records whether the kubelet registered the driver."""
        self.is_registered = request.plugin_registered
        if request.plugin_registered:
            self._log("registered", driver=DRIVER)
        else:
            self._log("not registered", driver=DRIVER, why=request.error)
        return pb.RegistrationStatusResponse()


class Sockets:
    """Both sockets of the driver, as a context manager that replaces those of a killed process."""

    def __init__(self, kubelet_dir: Path, driver: Driver, health: Health, log: Log) -> None:
        self._kubelet_dir = kubelet_dir
        self._endpoint = kubelet_dir / "plugins" / DRIVER / "dra.sock"
        self._entry = kubelet_dir / "plugins_registry" / f"{DRIVER}-reg.sock"
        self.registration = Registration(self._endpoint, log)
        self._driver = driver
        self._health = health
        self._servers: list[grpc.aio.Server] = []
        self._lock = -1

    async def __aenter__(self) -> Self:
        """Serves. Raises `PenstockError` if the directory is wrong or another process serves."""
        self._lock = take_driver_lock(self._kubelet_dir)
        try:
            serving = grpc.aio.server()
            dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(self._driver, serving)  # type: ignore[no-untyped-call] # generated
            dra_health_v1alpha1_pb2_grpc.add_DRAResourceHealthServicer_to_server(  # type: ignore[no-untyped-call] # generated
                self._health, serving
            )
            await self._start(serving, self._endpoint)
            entry = grpc.aio.server()
            registration_v1_pb2_grpc.add_RegistrationServicer_to_server(self.registration, entry)  # type: ignore[no-untyped-call] # generated
            await self._start(entry, self._entry)  # started last, because the kubelet calls at once
        except (OSError, RuntimeError) as error:
            await self.close()
            raise PenstockError(
                f"the driver's sockets cannot be created below {self._kubelet_dir}",
                str(error),
                "set --kubelet-dir to the kubelet's own directory, and run as root",
            ) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Lets calls end, then removes the sockets, so that the kubelet drops the driver."""
        self._health.end()
        for server in reversed(self._servers):
            await server.stop(STOP_WITHIN_S)
        if self._servers:
            for file in (self._entry, self._endpoint):
                with contextlib.suppress(OSError):
                    file.unlink()
        self._servers.clear()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    async def _start(self, server: grpc.aio.Server, file: Path) -> None:
        file.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        file.unlink(missing_ok=True)  # left by a killed process; the lock shows that it is gone
        server.add_insecure_port(f"unix:{file}")
        await server.start()
        file.chmod(0o600)
        self._servers.append(server)
