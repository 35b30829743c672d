"""Deployments that the installed chart scales."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest
from tests.kube.cluster.layout import API_ADDRESS
from tests.kube.support.controlling import PAGES_PORT, Things
from tests.kube.support.pods import INSIDE
from tests.kube.support.waiting import until

pytestmark = pytest.mark.kube


@dataclasses.dataclass(frozen=True)
class Load:
    """A Deployment scaled by one metric, of which one replica uses `least` to `most` percent."""

    metric: str
    least: float
    most: float
    memory: str = "80Mi"  # of the node
    limits: dict[str, str] | None = None  # its share by extended resources


SHARE = {"penstock.io/vgpu": "1", "penstock.io/memory": "8Gi", "penstock.io/cores-permille": "100"}


LOADS = {
    "memory": Load("memory", 110, 200),
    "cores": Load("cores", 80, 130, limits=SHARE),
    "vgpu": Load("vgpuMemory", 85, 101, limits=SHARE),
}


def test_deployments_follow_average_memory_and_the_use_of_their_vgpus(chart, cluster, pods, pages):
    """Each Deployment loads one resource and hardly the others.

    The figure of another one would scale nothing.
    """
    things = Things(cluster, pods.namespace)
    url = f"http://{API_ADDRESS}:{PAGES_PORT}/load"
    volumes = [{"name": "inside", "hostPath": {"path": str(INSIDE)}}]

    def pod_of(load: Load, container: dict[str, Any]) -> dict[str, Any]:
        container["volumeMounts"] = [{"name": "inside", "mountPath": str(INSIDE), "readOnly": True}]
        container["env"] = [{"name": "PENSTOCK_SIM_KERNELS", "value": "spin=param0"}]
        if load.limits:
            container["resources"]["limits"] = load.limits
        return {"volumes": volumes}

    (pages / "load").write_text("burn")
    for name, load in LOADS.items():
        command = ("python3", str(INSIDE / "load.py"), url, name)
        things.deployment(
            name, *command, cpu="10m", memory=load.memory, pod=functools.partial(pod_of, load)
        )
        things.policy(
            name,
            selector={"matchLabels": {"app": name}},
            scale={
                "min": 1, "max": 2, "stabilization": "6s",
                "metrics": {load.metric: {"up": 80, "down": 40}},
            },
        )  # fmt: skip
    try:
        for name, load in LOADS.items():
            until(f"{name} grows", lambda n=name: things.replicas(n) == 2, within_s=90)
            until(
                f"{name} is measured right",
                lambda n=name, x=load: (
                    x.least < things.target(n).get("metrics", {}).get(x.metric, 0) < x.most
                ),
            )
        (pages / "load").write_text("rest")
        for name in LOADS:
            until(f"{name} shrinks", lambda n=name: things.replicas(n) == 1, within_s=90)
    finally:
        things.remove()
