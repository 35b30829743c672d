"""The condition of a Pod's share, and its replacement where no node writes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.kube.controller.unready_events import why_unsaid
from penstock.kube.kubelet.node_pods import Condition, read_pod
from penstock.kube.kubelet.readiness import MOST_MESSAGE, RUNS, condition_of, has_to_end
from penstock.kube.objects.names import RUNNING
from penstock.kube.objects.workloads import read_pod as read_for_control
from penstock_api.v1 import agent_pb2 as pb

GATES = {"readinessGates": [{"conditionType": "other"}, {"conditionType": RUNNING}]}
WHY = {"t.1": ("VgpuSuspended", "over its quota"), "t.2": ("VgpuSuspendedByOrder", "")}


def pod(spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "n", "name": "p", "uid": "u"},
        "spec": {"nodeName": "node-1", "containers": [{"name": "main"}], **(spec or {})},
        "status": status,
    }


def condition(kind: str, status: str, **more: str) -> dict[str, str]:
    return {"type": kind, "status": status, **more}


def test_the_condition_follows_from_the_tenants_that_a_pod_has():
    starting, running = read_pod(pod(GATES)), read_pod(pod(GATES, phase="Running"))
    one, two = pb.Tenant(name="t.1"), pb.Tenant(name="t.2")
    held = pb.Tenant(name="t.2", suspended=True)
    assert condition_of(starting, [], WHY) is None, "its containers are not there"
    assert condition_of(starting, [one, two], WHY) == RUNS
    assert condition_of(running, [], WHY) == RUNS, "of a share that only an init container had"
    expected = Condition("False", "VgpuSuspendedByOrder", "tenant t.2 is suspended")
    assert condition_of(running, [one, held], WHY) == expected
    both = condition_of(running, [held, pb.Tenant(name="t.1", suspended=True)], WHY)
    assert both == Condition("False", "VgpuSuspended", "tenant t.1 is suspended: over its quota")
    long = condition_of(running, [held], {"t.2": ("VgpuSuspended", "x" * 5000)})
    assert long is not None
    assert len(long.message) == MOST_MESSAGE


def test_deletion_resumes_a_tenant_that_no_other_pod_has():
    """Deletion resumes only at its begin: a grace period of a day is no time to compute in."""
    stays = read_pod(pod(GATES))
    goes = replace(stays, uid="other", is_deleted=True)
    assert not has_to_end([], {"other"})
    assert not has_to_end([stays, goes], {"other"})
    assert has_to_end([goes], {"other"})
    assert not has_to_end([goes], {})


def test_the_condition_that_a_pod_has_is_read():
    said = [condition("Ready", "False"), condition(RUNNING, "False", reason="R", message="m")]
    found = read_pod(pod(GATES, conditions=said, phase="Running"))
    assert (found.is_gated, found.is_running, found.is_deleted) == (True, True, False)
    assert found.condition == Condition("False", "R", "m")
    assert not read_pod(pod()).is_gated


READY = condition("ContainersReady", "True")


@pytest.mark.parametrize(
    ("conditions", "served", "why"),
    [
        ([READY], ["node-1"], "no agent on node node-1 reports that its share runs"),
        ([READY], [], "no agent on node node-1 reports that its share runs"),
        ([], [], ""),  # its containers are not ready: that is another's to explain
        ([READY, condition(RUNNING, "True")], [], ""),
        ([READY, condition(RUNNING, "False", message="m")], ["node-1"], ""),  # its node's word
        ([READY, condition(RUNNING, "False", message="by order")], [], "its last report: by order"),
    ],
)
def test_a_missing_or_outdated_condition_of_a_node_is_reported_by_the_controller(
    conditions, served, why
):
    found = read_for_control(pod(GATES, conditions=conditions, phase="Running"))
    assert found is not None
    told = why_unsaid(found, served)
    assert (why in told) if why else (told == "")
    assert why_unsaid(replace(found, deleting=True), served) == ""
    plain = read_for_control(pod(conditions=conditions, phase="Running"))
    assert plain is not None
    assert why_unsaid(plain, served) == ""
