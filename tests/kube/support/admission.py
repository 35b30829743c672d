"""The webhook for a test, and Pods, claims and policies that it reviews."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import yaml
from kubernetes import client
from kubernetes.client import ApiException
from tests.kube.cluster.layout import API_ADDRESS
from tests.kube.cluster.toolchain import PROJECT
from tests.kube.support.placing import pod
from tests.kube.support.waiting import until

NAMESPACE = "penstock"


PORT = 9443


KINDS = {
    "MutatingWebhookConfiguration": "mutating_webhook_configuration",
    "ValidatingWebhookConfiguration": "validating_webhook_configuration",
}


CLASS = {
    "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "slices"},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver == "penstock.io"'}}]},
}  # fmt: skip


def configurations() -> list[dict[str, Any]]:
    """The chart's webhook configurations, for a server beside the cluster and another user."""
    text = (PROJECT / "deploy" / "kube" / "webhooks.yaml").read_text()
    found = list(
        yaml.safe_load_all(
            text.replace("system:serviceaccount:penstock:penstock-place", "system:kube-scheduler")
        )
    )
    for hook in (hook for one in found for hook in one["webhooks"]):
        hook["clientConfig"] = {"url": f"https://{API_ADDRESS}:{PORT}/"}
    return found


class Webhook:
    """`penstock kube admit` beside the API server."""

    def __init__(self, cluster, folder):
        self.cluster = cluster
        self.log_file = folder / "admit.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        keeper = self.cluster.process("keeper").pid
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    "setpriv", "--pdeathsig", "KILL", "nsenter", f"--net=/proc/{keeper}/ns/net",
                    sys.executable, "-m", "penstock", "kube", "admit",
                    f"--kubeconfig={self.cluster.layout.secrets}/admin.kubeconfig",
                    f"--listen={API_ADDRESS}:{PORT}", f"--name={API_ADDRESS}",
                    "--scheduler-user=system:kube-scheduler", *options,
                ],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        until("it is ready", lambda: self.ask("readyz"))

    def ask(self, path: str, body: bytes = b"") -> bytes:
        keeper = self.cluster.process("keeper").pid
        return subprocess.run(
            ["nsenter", f"--net=/proc/{keeper}/ns/net", "curl", "--silent", "--insecure", "--fail",
             *(["--data-binary", "@-"] if body else []), f"https://{API_ADDRESS}:{PORT}/{path}"],
            input=body, capture_output=True, check=False,
        ).stdout  # fmt: skip

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()


def refused(pods, body: dict[str, Any]) -> str:
    """Why a Pod is refused, by a dry run; empty: it is not."""
    try:
        pods.core.create_namespaced_pod(pods.namespace, body, dry_run="All")
    except ApiException as error:
        return json.loads(error.body)["message"]
    return ""


def asking(limits: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    body = pod("wrong", scheduler="default-scheduler")
    container = body["spec"]["containers"][0]
    container["resources"] = {"limits": limits or {"penstock.io/memory": "1Gi"}}
    container.update(spec.pop("container", {}))
    body["metadata"]["annotations"] = spec.pop("annotations", {})
    body["spec"].update(spec)
    return body


def claiming(claim: str = "good", **spec: Any) -> dict[str, Any]:
    """A Pod like that of `asking`, with a claim."""
    body = asking(**spec)
    body["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
    body["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return body


def claim(name: str, config: dict[str, Any] | None = None, **requests: str) -> dict[str, Any]:
    exactly = {"deviceClassName": "slices", "capacity": {"requests": requests}}
    devices: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if config is not None:
        head = {"apiVersion": "penstock.io/v1alpha1", "kind": "VgpuParameters"}
        opaque = {"driver": "penstock.io", "parameters": {**head, **config}}
        devices["config"] = [{"opaque": opaque}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": devices},
    }


def make_policy(
    cluster, pods, name: str, labels: dict[str, str] | None = None, **spec: Any
) -> None:
    limits = {"limits": {"memory": "8Gi", "cores": 30}}
    selector = {"selector": {"matchLabels": labels}} if labels else {}
    client.CustomObjectsApi(cluster.api).create_namespaced_custom_object(
        "penstock.io", "v1alpha1", pods.namespace, "quotapolicies",
        {
            "apiVersion": "penstock.io/v1alpha1", "kind": "QuotaPolicy",
            "metadata": {"name": name}, "spec": {**limits, **selector, **spec},
        },
    )  # fmt: skip


def warned(make, *arguments: Any, **more: Any) -> tuple[Any, str]:
    """The object that a request makes, and the warnings that came with it."""
    made, _, headers = make(*arguments, **more)
    return made, headers.get("Warning", "")


def tried(pods, body: dict[str, Any]) -> tuple[Any, str]:
    """The Pod that it would become, and warnings."""
    make = pods.core.create_namespaced_pod_with_http_info
    return warned(make, pods.namespace, body, dry_run="All")


def make_claims(cluster, pods, *bodies: dict[str, Any]) -> None:
    resources = client.CustomObjectsApi(cluster.api)
    for body in bodies:
        resources.create_namespaced_custom_object(
            "resource.k8s.io", "v1", pods.namespace, "resourceclaims", body
        )


def patient_policy(cluster, pods) -> None:
    """Makes a policy that suspends."""
    make_policy(
        cluster, pods, "patient", {"app": "patient"},
        onExceed={"measured": "suspend", "grace": "20s"},
    )  # fmt: skip


def refused_claim(cluster, pods, body: dict[str, Any], plural: str = "resourceclaims") -> str:
    """Why a claim is refused, by a dry run; empty: it is not."""
    try:
        client.CustomObjectsApi(cluster.api).create_namespaced_custom_object(
            "resource.k8s.io", "v1", pods.namespace, plural, body, dry_run="All"
        )
    except ApiException as error:
        return json.loads(error.body)["message"]
    return ""
