"""A node of each allocation mode, for tests of what both have in common."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kubernetes import client
from tests.kube.cluster import images, layout
from tests.kube.support.nodes import Node
from tests.kube.support.placing import Placing
from tests.kube.support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kube.cluster.running import Cluster
    from tests.kube.support.pods import Pods

CLASS = "penstock.io"
MIB = 1 << 20


@dataclass
class Share:
    """The share of a Pod, in either allocation mode."""

    memory_mib: int
    cores_permille: int


class BothWays:
    """Node 1 is served by claims, node 2 by the device plugin and the scheduler with its extender.

    `nodes` has them by way: "dra", "plugin".
    """

    def __init__(self, cluster: Cluster, folder: Path, *options: str) -> None:
        """`options` are those of the agents."""
        self.cluster = cluster
        self.nodes = {
            way: Node(cluster, name, way=way)
            for way, name in zip(("dra", "plugin"), layout.NODES, strict=True)
        }
        for node in self.nodes.values():
            node.agent.command += options
        self._placing = Placing(cluster, folder)
        self._claims = client.ResourceV1Api(cluster.api)

    def start(self) -> None:
        """Starts all; returns when Pods can have shares in both modes."""
        with contextlib.suppress(client.ApiException):  # left by a run that was killed
            self._claims.delete_device_class(CLASS)
        selector = {"cel": {"expression": f'device.driver == "{CLASS}"'}}
        self._claims.create_device_class(
            {"metadata": {"name": CLASS}, "spec": {"selectors": [selector]}}
        )
        for node in self.nodes.values():
            node.start()
        self._placing.start()
        self.until_ready()

    def until_ready(self) -> None:
        """Returns when the kubelets know the driver and the plugin, with its slots."""
        for node in self.nodes.values():
            node.until_ready()
        plugin = self.nodes["plugin"].name
        until("slots are told", lambda: self._slots(plugin) > 0)

    def stop(self) -> None:
        """Ends all processes."""
        self._placing.stop()
        for node in self.nodes.values():
            node.stop()
        self._claims.delete_device_class(CLASS)

    def _slots(self, node: str) -> int:
        status = self.cluster.core.read_node(node).status
        return int(status.allocatable.get("penstock.io/vgpu", 0))

    def run(
        self,
        pods: Pods,
        way: str,
        name: str,
        share: Share,
        *command: str | Path,
        mounts: tuple[Path, ...] = (),
        restart: str = "Never",
        **spec: Any,
    ) -> None:
        """Starts a Pod of one container with that share.

        `mounts` have the same path as on this machine.
        """
        container: dict[str, Any] = {
            "name": "main",
            "image": images.DEBIAN,
            "command": [str(part) for part in command],
            "volumeMounts": [
                {"name": f"host-{at}", "mountPath": str(path), "readOnly": True}
                for at, path in enumerate(mounts)
            ],
        }
        body: dict[str, Any] = {
            "containers": [container],
            "volumes": [
                {"name": f"host-{at}", "hostPath": {"path": str(path)}}
                for at, path in enumerate(mounts)
            ],
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": 0,
            **self._asked(pods, way, name, share, container),
            **spec,
        }
        pods.core.create_namespaced_pod(pods.namespace, {"metadata": {"name": name}, "spec": body})

    def _asked(
        self, pods: Pods, way: str, name: str, share: Share, container: dict[str, Any]
    ) -> dict[str, Any]:
        if way == "plugin":
            container["resources"] = {
                "limits": {
                    "penstock.io/vgpu": "1",
                    "penstock.io/memory": f"{share.memory_mib}Mi",
                    "penstock.io/cores-permille": str(share.cores_permille),
                }
            }
            return {"schedulerName": "penstock-scheduler"}
        amounts = {"memory": f"{share.memory_mib}Mi", "coresPermille": str(share.cores_permille)}
        request = {"deviceClassName": CLASS, "capacity": {"requests": amounts}}
        devices = {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}
        self._claims.create_namespaced_resource_claim(
            pods.namespace, {"metadata": {"name": name}, "spec": devices}
        )
        container["resources"] = {"claims": [{"name": "gpu"}]}
        return {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}
