"""`penstock kube control` as processes beside a cluster's control plane, and what they act on."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml
from kubernetes import client
from tests.kube.cluster.layout import API_ADDRESS, API_PORT
from tests.kube.cluster.toolchain import PROJECT
from tests.kube.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kube.cluster import running

GROUP, VERSION = "penstock.io", "v1alpha1"
CRDS = PROJECT / "deploy" / "crds"
NAMESPACE = "kube-system"  # of the lease: every cluster has it
LEASE = "penstock-control"
PAGES_PORT = 9700  # of what tests tell Pods and controllers, in the control plane's network


def define(cluster: running.Cluster) -> None:
    """Both custom resources, as the chart installs them."""
    extensions = client.ApiextensionsV1Api(cluster.api)
    for file in sorted(CRDS.glob("*.yaml")):
        made = yaml.safe_load(file.read_text())
        _made(lambda made=made: extensions.create_custom_resource_definition(made))
    objects = client.CustomObjectsApi(cluster.api)
    for plural in ("quotapolicies", "quotacaps"):
        until(
            f"{plural} are served",
            lambda p=plural: objects.list_cluster_custom_object(GROUP, VERSION, p),
        )


def undefine(cluster: running.Cluster) -> None:
    """Removes both custom resources with all objects of them; returns when they are gone."""
    extensions = client.ApiextensionsV1Api(cluster.api)
    for file in sorted(CRDS.glob("*.yaml")):
        extensions.delete_custom_resource_definition(f"{file.stem}.{GROUP}")
    with contextlib.suppress(client.ApiException):  # of controllers that ended
        client.CoordinationV1Api(cluster.api).delete_namespaced_lease(LEASE, NAMESPACE)

    def left() -> list[str]:
        found = extensions.list_custom_resource_definition().items
        return [one.metadata.name for one in found if one.spec.group == GROUP]

    until("both are gone", lambda: not left())


def device_class(cluster: running.Cluster) -> None:
    """Makes the chart's device class."""
    body = {
        "metadata": {"name": GROUP},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{GROUP}"'}}]},
    }
    _made(lambda: client.ResourceV1Api(cluster.api).create_device_class(body))


def no_device_class(cluster: running.Cluster) -> None:
    """Removes the device class: other tests make their own."""
    client.ResourceV1Api(cluster.api).delete_device_class(GROUP)


def _made(make: Callable[[], object]) -> None:
    try:
        make()
    except client.ApiException as error:
        if error.status != 409:
            raise


def netns(cluster: running.Cluster) -> list[str]:
    """The command prefix that runs a command in the control plane's network, which reaches Pods."""
    pid = cluster.layout.keeper.read_text()
    return ["nsenter", "--net", "--target", pid]


def kubeconfig(cluster: running.Cluster, folder: Path) -> Path:
    """The administrator's kubeconfig for processes in the control plane's network."""
    plain = yaml.safe_load(cluster.layout.kubeconfig.read_text())
    plain["clusters"][0]["cluster"]["server"] = f"https://{API_ADDRESS}:{API_PORT}"
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(plain))
    return file


@dataclass
class Controllers:
    """Processes of `penstock kube control`, of which one leads."""

    cluster: running.Cluster
    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Starts one more process, with a log file of its own."""
        file = self.folder / "kubeconfig"
        if not file.exists():
            kubeconfig(self.cluster, self.folder)
        port = 9500 + len(list(self.folder.glob("*.log")))
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [
                    *netns(self.cluster), sys.executable, "-m", "penstock", "kube", "control",
                    "--kubeconfig", file, "--namespace", NAMESPACE,
                    "--listen", f"127.0.0.1:{port}",
                    # Nobody serves metrics.k8s.io here; pages are served beside the cluster.
                    "--pod-use=kubelets", "--qps-pages=anywhere",
                ],
                stderr=log,
            )  # fmt: skip

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The log of a process."""
        text = (self.folder / f"{name}.log").read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def leader(self) -> str | None:
        """The name of the running process that leads."""
        leading = [
            name
            for name, process in self.processes.items()
            if process.poll() is None
            and [one["event"] for one in self.lines(name) if "leading" in one["event"]][-1:]
            == ["leading"]
        ]
        return leading[0] if len(leading) == 1 else None

    def kill(self, name: str) -> float:
        """Kills a process with SIGKILL; returns when, on the monotonic clock."""
        self.processes[name].kill()
        self.processes[name].wait(10)
        return time.monotonic()

    def stop(self) -> None:
        """Ends all processes with SIGTERM."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.wait(15)


@dataclass
class Things:
    """QuotaPolicies, caps, claims and workloads of one namespace."""

    cluster: running.Cluster
    namespace: str

    @property
    def custom(self) -> client.CustomObjectsApi:
        return client.CustomObjectsApi(self.cluster.api)

    @property
    def apps(self) -> client.AppsV1Api:
        return client.AppsV1Api(self.cluster.api)

    @property
    def resources(self) -> client.ResourceV1Api:
        return client.ResourceV1Api(self.cluster.api)

    def remove(self) -> None:
        """Removes what would make Pods again."""
        self.apps.delete_collection_namespaced_deployment(self.namespace)
        self.apps.delete_collection_namespaced_stateful_set(self.namespace)

    def policy(self, name: str, **spec: Any) -> None:
        """Makes a QuotaPolicy with small limits."""
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "QuotaPolicy",
            "metadata": {"name": name},
            "spec": {"limits": {"memory": "8Gi", "cores": 30}, **spec},
        }
        self.custom.create_namespaced_custom_object(
            GROUP, VERSION, self.namespace, "quotapolicies", body
        )

    def status(self, name: str) -> dict[str, Any]:
        """The status of a policy."""
        found = self.custom.get_namespaced_custom_object(
            GROUP, VERSION, self.namespace, "quotapolicies", name
        )
        return found.get("status") or {}

    def condition(self, name: str) -> tuple[str, str]:
        """Reason and message of its one condition."""
        conditions = self.status(name).get("conditions") or [{"reason": "", "message": ""}]
        return conditions[0]["reason"], conditions[0]["message"]

    def target(self, policy: str) -> dict[str, Any]:
        """The first target that a policy scales."""
        return (self.status(policy).get("targets") or [{}])[0]

    def deployment(
        self,
        name: str,
        *command: str,
        replicas: int = 1,
        cpu: str = "100m",
        memory: str = "32Mi",
        notes: dict[str, str] | None = None,
        port: int = 0,
        pod: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        """Makes a Deployment whose Pods are labelled with its name.

        `pod` changes their container and spec.
        """
        container: dict[str, Any] = {
            "name": "main",
            "image": "penstock.test/debian:1",
            "command": list(command),
            "resources": {"requests": {"cpu": cpu, "memory": memory}},
        }
        if port:
            container["readinessProbe"] = {
                "tcpSocket": {"port": port},
                "periodSeconds": 1,
            }
        more = pod(container) if pod else {}
        self.apps.create_namespaced_deployment(
            self.namespace,
            {
                "metadata": {"name": name, "annotations": notes or {}},
                "spec": {
                    "replicas": replicas,
                    "selector": {"matchLabels": {"app": name}},
                    "template": {
                        "metadata": {"labels": {"app": name}},
                        "spec": {
                            "containers": [container],
                            "terminationGracePeriodSeconds": 0,
                            **more,
                        },
                    },
                },
            },
        )

    def replicas(self, name: str) -> int:
        """The number of replicas that a Deployment asks for."""
        return int(self.apps.read_namespaced_deployment(name, self.namespace).spec.replicas)

    def claim(self, name: str, **more: Any) -> dict[str, Any]:
        """The body of a ResourceClaim of one share."""
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": claim_spec(**more),
        }


def claim_spec(
    memory: str = "8Gi",
    cores: int = 300,
    count: int = 1,
    device_class: str = GROUP,
    selector: str = "",
) -> dict[str, Any]:
    """The spec of a claim or a template."""
    exactly: dict[str, Any] = {
        "deviceClassName": device_class,
        "count": count,
        "capacity": {"requests": {"memory": memory, "coresPermille": str(cores)}},
    }
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    return {"devices": {"requests": [{"name": "vgpu", "exactly": exactly}]}}
