"""The chart on the test's cluster, as `helm` installs it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from kubernetes import client
from tests.kube.cluster import images, layout
from tests.kube.cluster.toolchain import PROJECT
from tests.kube.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kube.cluster.running import Cluster

CHART = PROJECT / "deploy/helm/penstock"
NAMESPACE = "penstock-system"
RELEASE = "penstock"
BY_CLAIMS, BY_PLUGIN = layout.NODES  # the chart serves both ways at once
# Where a node's own files show that Penstock was there.
PLACES = (
    "/run/penstock",
    "/var/lib/penstock",
    "/var/run/cdi",
    "/var/lib/kubelet/plugins/penstock*",
    "/var/lib/kubelet/plugins_registry/penstock*",
    "/var/lib/kubelet/device-plugins/penstock*",
)
VALUES = {
    "way": "both",
    "scheduler": {
        "image": dict(zip(("repository", "tag"), images.SCHEDULER.split(":"), strict=True))
    },
    "image": {"repository": images.PENSTOCK.split(":")[0], "tag": images.PENSTOCK.split(":")[1]},
    "agent": {"simulate": "h200,2"},
    "control": {"podUse": "kubelets"},  # nobody serves metrics.k8s.io here
}


class HelmError(Exception):
    """An error of helm or kubectl, with its output."""


def render(programs: Path, *arguments: str | Path) -> list[dict[str, Any]]:
    """The chart's objects, without a cluster. Raises HelmError."""
    command = ("template", RELEASE, CHART, "--kube-version", "1.36.0", "--namespace", NAMESPACE)
    text = _helm(programs, *command, *arguments)
    return [one for one in yaml.safe_load_all(text) if one]


def lint(programs: Path, *arguments: str | Path) -> str:
    """The output of `helm lint`. Raises HelmError."""
    return _helm(programs, "lint", "--strict", "--kube-version", "1.36.0", CHART, *arguments)


@dataclass
class Chart:
    """A release of the chart."""

    cluster: Cluster
    values: Path
    before: frozenset[str] = frozenset()  # the traces that were there already

    def install(self, *arguments: str) -> None:
        """Installs both modes, a node each, with simulated devices; returns when all is ready.

        One that is there already is upgraded.
        """
        self.values.write_text(yaml.safe_dump(VALUES))
        self.cluster.load(images.penstock())
        self.cluster.load(images.kube_scheduler(self.cluster.layout.programs))
        for node, way in ((BY_PLUGIN, "extender"), (BY_CLAIMS, None)):
            self.cluster.core.patch_node(node, {"metadata": {"labels": {"penstock.io/way": way}}})
        self._run(
            "upgrade", "--install", RELEASE, CHART, "--create-namespace",
            "--values", self.values, "--wait", *arguments,
        )  # fmt: skip

    def upgrade(self, *arguments: str) -> None:
        """Upgrades with other values (`--set …`); returns when all is ready again."""
        self._run("upgrade", RELEASE, CHART, "--reuse-values", "--wait", *arguments)

    def order(self, *arguments: str) -> None:
        """Runs a helm command on the release. Raises HelmError."""
        self._run(*arguments)

    def uninstall(self) -> None:
        """Uninstalls with hooks that wait as long as they do by default. Raises HelmError."""
        self._run("uninstall", RELEASE, "--wait")

    def uninstall_at_once(self) -> None:
        """Uninstalls without a wait for kubelets to forget the device plugin."""
        self.upgrade("--set", "uninstall.forgetSeconds=0")
        self.uninstall()

    def remove_namespace(self) -> None:
        """Removes the release's namespace, which helm leaves."""
        core = self.cluster.core
        core.delete_namespace(NAMESPACE)
        until(
            "the namespace is gone",
            lambda: NAMESPACE not in {one.metadata.name for one in core.list_namespace().items},
        )

    def pods(self, component: str, node: str = "") -> list[client.V1Pod]:
        """The Pods of a component, on all nodes or one, that are not being deleted."""
        found = self.cluster.core.list_namespaced_pod(
            NAMESPACE,
            label_selector=f"app.kubernetes.io/component={component}",
            field_selector=f"spec.nodeName={node}" if node else "",
        ).items
        return [pod for pod in found if not pod.metadata.deletion_timestamp]

    def speak_as(self, account: str, pod: client.V1Pod | None = None) -> client.ApiClient:
        """An API client with the token of a service account of the chart, also bound to `pod`."""
        spec: dict[str, Any] = {"audiences": None, "expirationSeconds": 3600}
        if pod is not None:
            about = {"name": pod.metadata.name, "uid": pod.metadata.uid}
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", **about}
        made = self.cluster.core.create_namespaced_service_account_token(
            f"{RELEASE}-{account}", NAMESPACE, {"spec": spec}
        )
        here = self.cluster.api.configuration
        there = client.Configuration()
        there.host, there.ssl_ca_cert = here.host, here.ssl_ca_cert
        there.api_key = {"authorization": f"Bearer {made.status.token}"}
        return client.ApiClient(there)

    def on_agent(self, node: str, *command: str) -> str:
        """The output of a command in the agent's container on a node."""
        (pod,) = self.pods("agent", node)
        exec_ = ("exec", "--namespace", NAMESPACE, pod.metadata.name, "--container", "agent", "--")
        return self.kubectl(*exec_, *command)

    def kubectl(self, *arguments: str | Path) -> str:
        """The output of a kubectl command. Raises HelmError."""
        return _program(
            self.cluster.layout.programs,
            "kubectl",
            *arguments,
            config=self.cluster.layout.kubeconfig,
        )

    def leader(self, component: str) -> str:
        """The holder of a component's Lease; it begins with the Pod's name."""
        leases = client.CoordinationV1Api(self.cluster.api)
        lease = leases.read_namespaced_lease(f"{RELEASE}-{component}", NAMESPACE)
        return str(lease.spec.holder_identity)

    def are_ready(self, component: str) -> bool:
        """Whether all replicas of a Deployment are ready."""
        apps = client.AppsV1Api(self.cluster.api)
        status = apps.read_namespaced_deployment(f"{RELEASE}-{component}", NAMESPACE).status
        return bool(status.ready_replicas == status.replicas)

    def kill(self, pod: client.V1Pod) -> None:
        """Kills all processes of a Pod at once, as when its node's memory is short."""
        uid = pod.metadata.uid
        parts = (f"pod{uid}", f"pod{uid.replace('-', '_')}")  # as the cgroup driver has it
        killed = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                if any(part in (folder / "cgroup").read_text() for part in parts):
                    os.kill(int(folder.name), signal.SIGKILL)
                    killed.append(folder.name)
        assert killed, f"no process of {pod.metadata.name} is here"

    def following(self, namespace: str, pod: str) -> subprocess.Popen[str]:
        """A process that follows the log of a Pod to its end; read it with `communicate`."""
        return subprocess.Popen(
            [
                self.cluster.layout.programs / "kubectl", "logs", "--follow", "--tail=1",
                "--namespace", namespace, pod,
            ],
            env={**os.environ, "KUBECONFIG": str(self.cluster.layout.kubeconfig)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def _run(self, *arguments: str | Path) -> None:
        _helm(
            self.cluster.layout.programs, *arguments, "--namespace", NAMESPACE, "--timeout", "120s",
            config=self.cluster.layout.kubeconfig,
        )  # fmt: skip


def traces(cluster: Cluster) -> Iterator[str]:
    """Everything of Penstock on the cluster and its nodes, except images and events."""
    for node in layout.NODES:
        listing = f"ls -d {' '.join(PLACES)} 2>/dev/null || true"
        yield from (f"{node}:{path}" for path in cluster.on(node, "sh", "-c", listing).split())
    for name, path in _kinds(cluster):
        found = _get(cluster, path)
        for one in found["items"]:
            metadata = one["metadata"]
            if "penstock" in metadata["name"] and "penstock" not in metadata.get("namespace", ""):
                yield f"{name}/{metadata['name']}"
            if any("penstock" in finalizer for finalizer in metadata.get("finalizers") or []):
                yield f"finalizer of {name}/{metadata['name']}"
            if name == "nodes":
                yield from (f"{metadata['name']}: {mark}" for mark in _marks(one))


def _marks(node: dict[str, Any]) -> Iterator[str]:
    metadata, status, spec = node["metadata"], node["status"], node["spec"]
    for part in (metadata.get("annotations"), metadata.get("labels"), status.get("capacity")):
        yield from (key for key in part or {} if "penstock" in key)
    yield from (taint["key"] for taint in spec.get("taints") or [] if "penstock" in taint["key"])


def _kinds(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """The path of each kind of object that can be listed."""
    groups = _get(cluster, "/apis")["groups"]
    preferred = [f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups]
    for path in ("/api/v1", *preferred):
        for kind in _get(cluster, path)["resources"]:
            if "list" in kind["verbs"] and kind["name"] != "events":
                yield kind["name"], f"{path}/{kind['name']}"


def _get(cluster: Cluster, path: str) -> dict[str, Any]:
    answer = cluster.api.call_api(
        path, "GET", auth_settings=["BearerToken"], _preload_content=False,
        _return_http_data_only=True, _request_timeout=10,
    )  # fmt: skip
    return json.loads(answer.data)


def _helm(programs: Path, *arguments: str | Path, config: Path | None = None) -> str:
    return _program(programs, "helm", *arguments, config=config)


def _program(programs: Path, name: str, *arguments: str | Path, config: Path | None = None) -> str:
    done = subprocess.run(
        [programs / name, *arguments],
        env={**os.environ, **({"KUBECONFIG": str(config)} if config else {})},
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    if done.returncode:
        raise HelmError(f"{name} {arguments[0]}: {(done.stderr or done.stdout).strip()[-1500:]}")
    return done.stdout
