"""Container runtime client: lists a Pod's containers over CRI, as the kubelet does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from penstock.model import PenstockError
from penstock_api.kubelet import cri_v1_pb2 as pb
from penstock_api.kubelet import cri_v1_pb2_grpc

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S = 5.0
MOST_ANSWER_BYTES = 16 << 20
POD_UID = "io.kubernetes.pod.uid"


@dataclass(frozen=True)
class Ran:
    """The newest container with a given name in a Pod's current sandbox."""

    container: str
    has_succeeded: bool  # it ended with exit code 0


class Runtime:
    """A container runtime, behind its CRI socket."""

    def __init__(self, socket: Path) -> None:
        """Creates a client without connecting yet."""
        self._socket = socket

    async def ran(self, pod_uid: str) -> dict[str, Ran]:
        """The newest containers in the Pod's current sandbox, by name.

        Raises:
            PenstockError: the runtime does not respond.
        """
        options = [
            ("grpc.enable_http_proxy", 0),
            ("grpc.default_authority", "localhost"),
            ("grpc.max_receive_message_length", MOST_ANSWER_BYTES),
        ]
        of_pod = {POD_UID: pod_uid}
        try:
            async with grpc.aio.insecure_channel(f"unix:{self._socket}", options) as channel:
                stub = cri_v1_pb2_grpc.RuntimeServiceStub(channel)  # type: ignore[no-untyped-call] # generated
                sandboxes = await stub.ListPodSandbox(
                    pb.ListPodSandboxRequest(filter=pb.PodSandboxFilter(label_selector=of_pod)),
                    timeout=TIMEOUT_S,
                )
                listed = await stub.ListContainers(
                    pb.ListContainersRequest(filter=pb.ContainerFilter(label_selector=of_pod)),
                    timeout=TIMEOUT_S,
                )
                found = {}
                for name, one in newest(sandboxes.items, listed.containers).items():
                    succeeded = False
                    if one.state == pb.CONTAINER_EXITED:
                        asked = pb.ContainerStatusRequest(container_id=one.id)
                        answer = await stub.ContainerStatus(asked, timeout=TIMEOUT_S)
                        succeeded = answer.status.exit_code == 0
                    found[name] = Ran(name, succeeded)
                return found
        except grpc.RpcError as error:
            raise PenstockError(
                f"the container runtime does not respond at {self._socket}", str(error.details()),
                "check that it runs, and that --runtime-socket names its CRI socket",
                reason="unavailable",
            ) from error  # fmt: skip


def newest(
    sandboxes: list[pb.PodSandbox], containers: list[pb.Container]
) -> dict[str, pb.Container]:
    """By name, the last attempt of each container in the newest sandbox."""
    if not sandboxes:
        return {}
    present = max(sandboxes, key=lambda one: one.created_at).id
    found: dict[str, pb.Container] = {}
    for one in sorted(containers, key=lambda one: (one.created_at, one.metadata.attempt)):
        if one.pod_sandbox_id == present:
            found[one.metadata.name] = one
    return found
