"""Pods for a test, and their output."""

from __future__ import annotations

import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.kube.cluster import images
from tests.kube.cluster.toolchain import PROJECT
from tests.kube.support.waiting import WITHIN_S, until

if TYPE_CHECKING:
    from kubernetes import client

INSIDE = Path(__file__).parent / "inside"  # programs that run in Pods


def this_python() -> list[Path]:
    """The folders of this machine that a container mounts to run this Python and its packages.

    They are mounted where they are here. The image has to be of this machine's own Debian release.
    """
    return [Path(sys.base_prefix), Path(sys.prefix), PROJECT / "tests"]


@dataclass
class Pods:
    """The Pods of one namespace."""

    core: client.CoreV1Api
    namespace: str

    @classmethod
    def in_new_namespace(cls, core: client.CoreV1Api) -> Pods:
        """The Pods of a new namespace; returns when Pods can be made in it."""
        namespace = f"test-{secrets.token_hex(4)}"
        core.create_namespace({"metadata": {"name": namespace}})
        until(
            f"{namespace} has a service account",
            lambda: core.read_namespaced_service_account("default", namespace),
            within_s=150,  # who makes it waits ever longer for an API server that was killed
        )
        return cls(core, namespace)

    def start(
        self,
        name: str,
        *command: str | Path,
        node: str = "",
        mounts: list[Path] | None = None,
        restart: str = "Never",
        labels: dict[str, str] | None = None,
        claims: dict[str, dict[str, str]] | None = None,
    ) -> None:
        """One container of the Debian image; `node` only selects, the scheduler still decides.

        `claims` by the Pod's own name for each, as {"resourceClaimName": …}: the container has all.
        """
        mounts = mounts or []
        volumes = [
            {"name": f"host-{at}", "hostPath": {"path": str(path)}}
            for at, path in enumerate(mounts)
        ]
        container = {
            "name": "main",
            "image": images.DEBIAN,
            "command": [str(part) for part in command],
            "volumeMounts": [
                {"name": f"host-{at}", "mountPath": str(path), "readOnly": True}
                for at, path in enumerate(mounts)
            ],
        }
        spec: dict[str, Any] = {
            "containers": [container],
            "volumes": volumes,
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": 0,
        }
        if claims:
            container["resources"] = {"claims": [{"name": one} for one in claims]}
            spec["resourceClaims"] = [{"name": one, **source} for one, source in claims.items()]
        if node:
            spec["nodeSelector"] = {"kubernetes.io/hostname": node}
        pod = {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}
        self.core.create_namespaced_pod(self.namespace, pod, _request_timeout=30)

    def start_restricted(
        self, name: str, *command: str, template: str = "", limits: dict[str, str] | None = None
    ) -> None:
        """A Pod of one container with a share, at PodSecurity's level "restricted".

        By a claim made from that `template`, or by extended resources.
        """
        container = {
            "name": "main",
            "image": images.DEBIAN,
            "command": list(command),
            "resources": {"claims": [{"name": "gpu"}]} if template else {"limits": limits},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        }
        claim = {"name": "gpu", "resourceClaimTemplateName": template}
        spec = {
            "containers": [container],
            "resourceClaims": [claim] if template else [],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 54321,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        }
        pod = {"metadata": {"name": name}, "spec": spec}
        self.core.create_namespaced_pod(self.namespace, pod, _request_timeout=30)

    def read(self, name: str) -> client.V1Pod:
        """The Pod's object."""
        return self.core.read_namespaced_pod(name, self.namespace, _request_timeout=10)

    def until_phase(self, name: str, *phases: str, within_s: float = WITHIN_S) -> client.V1Pod:
        """Returns the Pod when it is in one of the phases.

        Fails with the log of a Pod that fails instead.
        """

        def look() -> client.V1Pod | None:
            pod = self.read(name)
            if pod.status.phase == "Failed" and "Failed" not in phases:
                raise AssertionError(f"{name} failed: {pod.status.message} {self.log(name)}")
            return pod if pod.status.phase in phases else None

        return until(f"{name} is {' or '.join(phases)}", look, within_s)

    def log(self, name: str) -> str:
        """The log of a Pod, by the API server and the kubelet."""
        answer = self.core.read_namespaced_pod_log(
            name, self.namespace, _request_timeout=10, _preload_content=False
        )  # or the client would read JSON and print it in Python's way
        return answer.data.decode()

    def warnings(self) -> str:
        """The warnings among the Pods' events, a line each."""
        try:
            found = self.core.list_namespaced_event(self.namespace, _request_timeout=10).items
        except Exception as error:  # noqa: BLE001 - whatever it is, the test has failed already
            return f"not to be had: {error}"
        return "\n".join(
            f"{one.last_timestamp or one.event_time} {one.involved_object.name}: {one.reason}: "
            f"{one.message}"
            for one in found
            if one.type == "Warning"
        )

    def remove(self) -> None:
        """Removes the namespace with all Pods; returns when no Pod is left."""
        self.core.delete_collection_namespaced_pod(self.namespace, grace_period_seconds=0)
        until(
            f"{self.namespace} has no Pods",
            lambda: not self.core.list_namespaced_pod(self.namespace).items,
        )
        self.core.delete_namespace(self.namespace)
