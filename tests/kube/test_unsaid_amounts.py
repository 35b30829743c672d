"""Amounts that a claim leaves out count as the device's defaults in the reason why a Pod waits."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.kube.controller.cluster_snapshot import (
    devices_of,
    read_claim,
    read_node,
    read_slice,
    usual_of,
)
from penstock.kube.controller.explain import ClusterSnapshot, explain
from penstock.kube.kubelet.resource_slices import slices_of
from penstock.kube.objects.node_devices import NodeDevice
from penstock.kube.objects.workloads import read_pod

GIB = 1 << 30


def a_claim(name: str, amounts: dict[str, str], consumed: dict[str, str] | None = None) -> Any:
    exactly = {"deviceClassName": "penstock.io", "capacity": {"requests": amounts}}
    status: dict[str, Any] = {}
    if consumed:
        result = {
            "request": "gpu", "driver": "penstock.io", "pool": "node", "device": "gpu-1",
            "consumedCapacity": consumed,
        }  # fmt: skip
        status = {"allocation": {"devices": {"results": [result]}}}
    return read_claim({
        "metadata": {"name": name, "namespace": "n", "uid": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}, "status": status,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("amounts", "short", "enough"),
    [
        ({"memory": "80Gi"}, "memory short by 20Gi", "cores"),
        ({"coresPermille": "800"}, "cores short by 10%", "memory"),
        ({"coresPermille": "700"}, "nothing is short there now", "short by"),
    ],
)
def test_the_reason_why_a_pod_waits_names_no_amount_that_is_sufficient(amounts, short, enough):
    """Of the device 60 GiB and 70 % of cores are free, more than the default of an eighth."""
    device = NodeDevice("GPU-1", 0, "H200", 140 * GIB)
    (slice_,) = slices_of("node", "u", [device], 1)
    name = slice_["spec"]["devices"][0]["name"]
    taken = a_claim("taken", {}, {"memory": "80Gi", "coresPermille": "300"})
    held = type(taken.held[0])("node", name, taken.held[0].share)
    taken = type(taken)(**{**vars(taken), "held": (held,)})
    mine = a_claim("mine", amounts)
    slices = [read_slice(slice_)]
    pod = read_pod({
        "metadata": {"name": "p", "namespace": "n", "uid": "p"},
        "spec": {
            "containers": [{"name": "main"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}],
        },
        "status": {"phase": "Pending", "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/1 nodes are available",
        }]},
    })  # fmt: skip
    node = read_node({
        "metadata": {"name": "node"},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "100"},
        },
    })  # fmt: skip
    claims = {("n", one.name): one for one in (taken, mine)}
    world = ClusterSnapshot(
        {"node": node}, devices_of(slices, claims.values()), claims, ["penstock.io"],
        ["penstock.io"], usual=usual_of(slices),
    )  # fmt: skip
    why = str(explain(pod, world))
    assert short in why
    assert enough not in why
