"""Pods under the installed chart, and what their administrator types."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.kube.cluster import images
from tests.kube.support.pods import INSIDE
from tests.kube.support.waiting import until

GRACE_S = 90


def launching(name: str, *words: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """A Pod that launches kernels until SIGTERM, and then prints a last line."""
    volumes = [{"name": "inside", "hostPath": {"path": str(INSIDE)}}]
    mount = {"name": "inside", "mountPath": str(INSIDE), "readOnly": True}
    container = {
        "name": "main", "image": images.DEBIAN, "volumeMounts": [mount], "resources": {},
        "command": ["python3", "-u", str(INSIDE / "launch.py"), *words],
    }  # fmt: skip
    spec = {
        "containers": [container], "volumes": volumes, "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
    }  # fmt: skip
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}


def share_of(pods, name: str) -> tuple[str, str, str, str]:
    """The condition of a Pod's share (status, reason, message), and whether the Pod is ready.

    Its containers are ready: nothing but the share keeps the Pod from it.
    """
    found = {one.type: one for one in pods.read(name).status.conditions or []}
    own, ready = found.get("penstock.io/running"), found["Ready"].status
    if own is None or found["ContainersReady"].status != "True":
        return "", "", "", ready
    return own.status, own.reason, own.message or "", ready


def until_suspended(pods, name: str, reason: str, words: str) -> None:
    def look() -> bool:
        status, why, message, ready = share_of(pods, name)
        return (status, why, ready) == ("False", reason, "False") and words in message

    until(f"{name} is suspended, and not ready", look, within_s=120)


def order(chart, nodes: dict[str, str], name: str, *words: str) -> None:
    """Runs a `penstock` command on a Pod's tenant on its node, as an administrator does."""
    rows = json.loads(chart.on_agent(nodes[name], "penstock", "ps", "-o", "json"))
    (tenant,) = (row["tenant"] for row in rows if row["tenant"].startswith(f"{name}."))
    chart.on_agent(nodes[name], "penstock", words[0], tenant, *words[1:])


def shell_of(cluster) -> dict[str, str]:
    """The environment of a shell with kubectl and access to this cluster."""
    return {
        "PATH": f"{cluster.layout.programs}:/usr/bin:/bin",
        "KUBECONFIG": str(cluster.layout.kubeconfig),
        "HOME": str(cluster.layout.state),  # what kubectl keeps goes with the cluster
    }


def typed(lines: list[str], environment: dict[str, str]) -> str:
    """Runs the lines in a shell; returns stderr, with warnings."""
    done = subprocess.run(
        ["sh", "-euc", "\n".join(lines)],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr
