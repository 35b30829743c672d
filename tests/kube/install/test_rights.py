"""What the installed components may do, in the kernel and at the API server."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from kubernetes import client
from tests.kube.cluster import layout
from tests.kube.support.chart import (
    BY_CLAIMS,
    BY_PLUGIN,
    NAMESPACE,
    HelmError,
)
from tests.kube.support.waiting import until

pytestmark = pytest.mark.kube


CAPABILITIES = {  # by their numbers in the kernel
    0: "CHOWN", 1: "DAC_OVERRIDE", 2: "DAC_READ_SEARCH", 3: "FOWNER", 5: "KILL",
    19: "SYS_PTRACE", 23: "SYS_NICE",
}  # fmt: skip


def test_an_agent_runs_on_each_node_with_its_devices_and_few_capabilities(chart):
    for node in layout.NODES:
        devices = json.loads(chart.on_agent(node, "penstock", "devices", "-o", "json"))
        (simulated,) = [one for one in devices["kinds"] if one["kind"] == "simulated"]
        assert [one["model"] for one in simulated["devices"]] == ["NVIDIA H200"] * 2
        status = chart.on_agent(node, "cat", "/proc/self/status")
        (bound,) = re.findall(r"^CapBnd:\s+([0-9a-f]+)$", status, re.MULTILINE)
        assert int(bound, 16) == sum(1 << number for number in CAPABILITIES)
        assert re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE)
        assert re.search(r"^Seccomp:\s+2$", status, re.MULTILINE)
        with pytest.raises(HelmError, match="Read-only file system"):
            chart.on_agent(node, "touch", "/opt/penstock/here")


RIGHTS = {  # verb, group, resource, namespace
    "agent": (
        {
            ("patch", "", "nodes", ""), ("create", "resource.k8s.io", "resourceslices", ""),
            ("get", "resource.k8s.io", "resourceclaims", "default"), ("list", "", "pods", ""),
            ("patch", "", "events", "default"), ("patch", "", "pods/status", "default"),
        },
        {
            ("get", "", "secrets", NAMESPACE), ("create", "", "pods", NAMESPACE),
            ("patch", "", "pods", "default"), ("create", "", "pods/exec", "default"),
            ("delete", "", "nodes", ""), ("patch", "", "nodes/status", ""),
            ("update", "", "pods/status", "default"), ("create", "", "pods/eviction", "default"),
            ("update", "resource.k8s.io", "resourceclaims/status", "default"),
            ("get", "", "nodes/proxy", ""),
        },
    ),
    "control": (
        {
            ("patch", "penstock.io", "quotapolicies/status", "default"),
            ("update", "penstock.io", "quotacaps/status", "default"),
            ("update", "apps", "deployments/scale", "default"),
            ("get", "", "nodes/proxy", ""), ("get", "", "services", "default"),
            ("create", "", "events", "default"),
            ("create", "coordination.k8s.io", "leases", NAMESPACE),
        },
        {
            ("get", "", "secrets", NAMESPACE), ("patch", "", "nodes", ""),
            ("list", "metrics.k8s.io", "pods", "default"),
            ("delete", "", "pods", "default"), ("create", "", "pods", "default"),
            ("list", "", "services", ""), ("update", "apps", "deployments", "default"),
            ("update", "penstock.io", "quotapolicies", "default"),
            ("create", "coordination.k8s.io", "leases", "kube-system"),
        },
    ),
    "admit": (
        {
            ("get", "resource.k8s.io", "resourceclaimtemplates", "default"),
            ("get", "penstock.io", "quotapolicies", "default"), ("watch", "", "nodes", ""),
        },
        {
            ("list", "", "secrets", NAMESPACE), ("get", "", "secrets", "default"),
            ("create", "", "pods", "default"), ("patch", "", "pods", "default"),
            ("update", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", ""),
            ("update", "penstock.io", "quotapolicies", "default"),
        },
    ),
    "scheduler": (
        {
            ("create", "", "pods/binding", "default"), ("list", "", "nodes", ""),
            ("patch", "", "pods/status", "default"), ("patch", "", "events", "default"),
            ("create", "coordination.k8s.io", "leases", NAMESPACE),
            ("create", "", "pods/eviction", "default"),
            ("list", "policy", "poddisruptionbudgets", ""),
        },
        {
            ("get", "", "secrets", NAMESPACE), ("create", "", "pods", "default"),
            ("patch", "", "pods", "default"), ("patch", "", "nodes", ""),
            ("get", "", "nodes/proxy", ""), ("delete", "", "events", "default"),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("account", RIGHTS)
def test_an_account_may_do_what_it_needs_and_no_more(chart, account):
    asked = client.AuthorizationV1Api(chart.speak_as(account))

    def may(verb: str, group: str, resource: str, namespace: str) -> bool:
        name, _, part = resource.partition("/")
        about = {"verb": verb, "group": group, "resource": name, "subresource": part}
        review = {"spec": {"resourceAttributes": {**about, "namespace": namespace}}}
        return asked.create_self_subject_access_review(review).status.allowed

    can, cannot = RIGHTS[account]
    assert {right for right in can | cannot if may(*right)} == can


def refused(why: str, write, *arguments, **more) -> None:
    with pytest.raises(client.ApiException, match=why) as error:
        write(*arguments, **more)
    assert error.value.status == 422


def test_an_agents_token_writes_only_to_objects_of_its_own_node(chart, cluster):
    here, there = BY_PLUGIN, BY_CLAIMS  # of claims there are slices
    (pod,) = chart.pods("agent", here)
    core = client.CoreV1Api(chart.speak_as("agent", pod))
    slices = client.ResourceV1Api(core.api_client)

    note = {"metadata": {"annotations": {"penstock.io/tried": "yes"}}}

    def is_in_force() -> bool:  # the API server learns of a new policy within seconds
        try:
            core.patch_node(there, note, dry_run="All")
        except client.ApiException as error:
            return error.status == 422
        return False

    until("the policy is in force", is_in_force)
    core.patch_node(here, note)
    core.patch_node(here, {"metadata": {"annotations": {"penstock.io/tried": None}}})
    refused(f"an agent on {here} may not write nodes/{there}", core.patch_node, there, note)
    nothing_else = "annotations of its node that begin with"
    for change in (
        {"metadata": {"labels": {"penstock.io/pool": "mine"}}},
        {"metadata": {"annotations": {"node.alpha.kubernetes.io/ttl": "1"}}},
        {"spec": {"unschedulable": True}},
    ):
        refused(nothing_else, core.patch_node, here, change)
    (theirs,) = slices.list_resource_slice(field_selector=f"spec.nodeName={there}").items
    refused("may not write resourceslices", slices.delete_resource_slice, theirs.metadata.name)
    made = {
        "metadata": {"name": "false"},
        "spec": {
            "driver": "gpu.example.com", "nodeName": here, "devices": [],
            "pool": {"name": here, "generation": 1, "resourceSliceCount": 1},
        },
    }  # fmt: skip
    refused("may not write resourceslices", slices.create_resource_slice, made)
    made["spec"] |= {"driver": "penstock.io", "pool": {**made["spec"]["pool"], "name": there}}
    refused("may not write resourceslices", slices.create_resource_slice, made)
    made["spec"]["pool"]["name"] = here
    slices.create_resource_slice(made, dry_run="All")
    unbound = client.CoreV1Api(chart.speak_as("agent"))
    refused("an agent on no node", unbound.patch_node, here, note)
    of_pods_it_says_whether_their_share_runs(chart, core, unbound)


def of_pods_it_says_whether_their_share_runs(chart, core, unbound) -> None:
    """An agent may write whether the share of a Pod of its node runs, and nothing else."""
    here, there = BY_PLUGIN, BY_CLAIMS
    (pod,) = chart.pods("agent", here)
    (other,) = chart.pods("agent", there)

    def say(api, one: client.V1Pod, metadata: dict[str, Any] | None = None, **status: Any) -> None:
        body = {"metadata": metadata or {}, "status": status}
        api.patch_namespaced_pod_status(one.metadata.name, NAMESPACE, body, dry_run="All")

    runs = {"conditions": [{"type": "penstock.io/running", "status": "False", "message": "m"}]}
    say(core, pod, **runs)
    refused(f"an agent on {here} may not write pods/", say, core, other, **runs)
    refused("an agent on no node", say, unbound, pod, **runs)
    for wrong in (
        {"conditions": [{"type": "Ready", "status": "False"}]}, {"phase": "Failed"},
        {**runs, "message": "m"}, {**runs, "metadata": {"labels": {"app": "mine"}}},
        {"metadata": {"annotations": {"penstock.io/placed": "{}"}}},
        {"metadata": {"annotations": {"penstock.io/held": "{}"}}},
        {"metadata": {"annotations": {"other": "{}"}}},
    ):  # fmt: skip
        with pytest.raises(client.ApiException, match=r"nothing else of them|only the scheduler"):
            say(core, pod, **wrong)


def test_an_agents_token_writes_events_only_for_its_own_node_and_about_pods_and_claims(chart):
    here, there = BY_PLUGIN, BY_CLAIMS
    (pod,) = chart.pods("agent", here)
    core = client.CoreV1Api(chart.speak_as("agent", pod))
    unbound = client.CoreV1Api(chart.speak_as("agent"))

    def tell(api, host: str, kind: str, name: str, component: str = "penstock.io/node") -> None:
        about = {"kind": kind, "name": name, "namespace": NAMESPACE}
        event = {
            "metadata": {"name": f"{name}.1"}, "involvedObject": about, "reason": "Tried",
            "source": {"component": component, "host": host},
        }  # fmt: skip
        api.create_namespaced_event(NAMESPACE, event, dry_run="All")

    def is_in_force() -> bool:  # the API server learns of a new policy within seconds
        try:
            tell(core, there, "Pod", "any")
        except client.ApiException as error:
            return error.status == 422
        return False

    until("the policy is in force", is_in_force)
    tell(core, here, "Pod", "any")
    tell(core, here, "ResourceClaim", "any")
    an_event = f"an agent on {here} may not write the event"
    about_others = "about its own node"
    for why, of in (
        (an_event, (core, there, "Pod", "any")),
        (an_event, (core, here, "Pod", "any", "kubelet")),
        (about_others, (core, here, "Node", there)),
        (about_others, (core, here, "Deployment", "any")),
        ("an agent on no node", (unbound, here, "Pod", "any")),
    ):
        with pytest.raises(client.ApiException, match=why):
            tell(*of)
