"""Client of the kubelet's podresources API: the devices and claims of each container."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from penstock.kube.objects.names import DRIVER
from penstock.model import PenstockError
from penstock_api.kubelet import podresources_v1_pb2 as pb
from penstock_api.kubelet import podresources_v1_pb2_grpc

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S = 10.0
MOST_ANSWER_BYTES = 64 << 20


class Kubelet:
    """A node's kubelet, behind its podresources socket."""

    def __init__(self, kubelet_dir: Path) -> None:
        """Creates a client for use in the current event loop, without connecting yet."""
        self._file = kubelet_dir / "pod-resources" / "kubelet.sock"

    async def pods(self) -> list[pb.PodResources]:
        """All Pods with the resources of their containers. Raises `PenstockError`."""
        options = [
            ("grpc.enable_http_proxy", 0),
            ("grpc.default_authority", "localhost"),
            ("grpc.max_receive_message_length", MOST_ANSWER_BYTES),
        ]
        async with grpc.aio.insecure_channel(f"unix:{self._file}", options) as channel:
            stub = podresources_v1_pb2_grpc.PodResourcesListerStub(channel)  # type: ignore[no-untyped-call] # generated
            try:
                answer = await stub.List(pb.ListPodResourcesRequest(), timeout=TIMEOUT_S)
            except grpc.RpcError as error:
                raise PenstockError(
                    f"the kubelet does not respond at {self._file}", str(error.details()),
                    "check that it runs; the request is retried", reason="unavailable",
                ) from error  # fmt: skip
        return list(answer.pod_resources)

    async def claims(self) -> set[tuple[str, str]]:
        """Namespace and name of all claims for our devices that containers have.

        Raises:
            PenstockError: the kubelet does not respond.
        """
        return {
            (dynamic.claim_namespace, dynamic.claim_name)
            for pod in await self.pods()
            for container in pod.containers
            for dynamic in container.dynamic_resources
            if any(one.driver_name == DRIVER for one in dynamic.claim_resources)
        }
