"""Plugin socket: serves the device plugin next to the kubelet's socket, and registers it.

When a kubelet starts, it removes all sockets in its directory and creates its own again. After
that, and after a start of this process, the plugin creates its socket and registers. It also
registers again if the kubelet still runs but no longer listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

import grpc

from penstock.kube.kubelet.driver_lock import take_driver_lock
from penstock.kube.objects.names import RESOURCE_COUNT
from penstock.model import PenstockError
from penstock_api.kubelet import deviceplugin_v1beta1_pb2 as pb
from penstock_api.kubelet import deviceplugin_v1beta1_pb2_grpc

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

    from penstock.kube.kubelet.device_plugin import Plugin

API_VERSION = "v1beta1"
KUBELET = "kubelet.sock"
OWN = f"{RESOURCE_COUNT.replace('/', '-')}.sock"
LOOK_S = 1.0
LISTENS_WITHIN_S = 10.0  # after a registration, a kubelet requests the devices at once
REGISTER_WITHIN_S = 10.0
STOP_WITHIN_S = 5.0
Identity = tuple[int, int, int]
Log = Any  # log(event, **fields)


class PluginSocket:
    """The plugin's socket as a context manager; `run` keeps it registered."""

    def __init__(self, folder: Path, kubelet_dir: Path, plugin: Plugin, log: Log) -> None:
        """`folder` is the kubelet's directory for plugins (/var/lib/kubelet/device-plugins)."""
        self.problem: PenstockError | None = None
        """Why the plugin is not registered; None if it is."""
        self._folder = folder
        self._kubelet_dir = kubelet_dir
        self._plugin = plugin
        self._log = log
        self._server: grpc.aio.Server | None = None
        self._registered: tuple[Identity, Identity] | None = None  # kubelet's socket, our socket
        self._registered_s = 0.0
        self._lock = -1

    @property
    def is_registered(self) -> bool:
        """Whether the kubelet has registered the plugin and listens."""
        return self._registered is not None and self._plugin.is_watched

    async def __aenter__(self) -> Self:
        """Takes the lock. Raises `PenstockError` if another process serves this node."""
        self._lock = take_driver_lock(self._kubelet_dir)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Lets calls end, then removes the socket, so that the kubelet drops the plugin."""
        if self._server is not None:
            await self._stop()
            with contextlib.suppress(OSError):
                (self._folder / OWN).unlink()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    async def run(self) -> None:
        """Registers whenever necessary, until cancelled."""
        while True:
            kubelet = _identity(self._folder / KUBELET)
            if kubelet is None:
                self._registered = None
                self.problem = PenstockError(
                    "the device plugin is not registered", f"there is no {self._folder / KUBELET}",
                    "start the kubelet, or correct --device-plugin-dir",
                )  # fmt: skip
            elif not self._stands(kubelet):
                await self._register(kubelet)
            await asyncio.sleep(LOOK_S)

    def _stands(self, kubelet: Identity) -> bool:
        if self._registered != (kubelet, _identity(self._folder / OWN)):
            return False
        waited_s = time.monotonic() - self._registered_s
        return self._plugin.is_watched or waited_s < LISTENS_WITHIN_S

    async def _register(self, kubelet: Identity) -> None:
        own = self._folder / OWN
        self._registered = None
        try:
            await self._stop()
            own.unlink(missing_ok=True)  # left by a killed process; the lock shows that it is gone
            server = grpc.aio.server()
            deviceplugin_v1beta1_pb2_grpc.add_DevicePluginServicer_to_server(self._plugin, server)  # type: ignore[no-untyped-call] # generated
            server.add_insecure_port(f"unix:{own}")
            await server.start()
            self._server = server
            own.chmod(0o600)
            request = pb.RegisterRequest(
                version=API_VERSION,
                endpoint=OWN,
                resource_name=RESOURCE_COUNT,
                options=pb.DevicePluginOptions(pre_start_required=True),
            )
            options = [("grpc.enable_http_proxy", 0), ("grpc.default_authority", "localhost")]
            kubelets = f"unix:{self._folder / KUBELET}"
            async with grpc.aio.insecure_channel(kubelets, options) as channel:
                stub = deviceplugin_v1beta1_pb2_grpc.RegistrationStub(channel)  # type: ignore[no-untyped-call] # generated
                await stub.Register(request, timeout=REGISTER_WITHIN_S)
        except (OSError, RuntimeError, grpc.RpcError) as error:
            why = error.details() if isinstance(error, grpc.RpcError) else error
            self.problem = PenstockError(
                f"the kubelet did not register the plugin for {RESOURCE_COUNT}", str(why),
                "see the kubelet's log; registration is retried every second",
            )  # fmt: skip
            return
        made = _identity(own)
        self._registered = (kubelet, made) if made else None
        self._registered_s = time.monotonic()
        self.problem = None
        self._log("registered", resource=RESOURCE_COUNT)

    async def _stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(STOP_WITHIN_S)


def _identity(socket: Path) -> Identity | None:
    """The identity of a socket, which differs from that of a later socket in its place."""
    try:
        about = socket.lstat()
    except OSError:
        return None
    return about.st_dev, about.st_ino, about.st_ctime_ns
