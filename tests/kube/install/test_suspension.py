"""Suspended Pods under the installed chart."""

from __future__ import annotations

import json
import time

import pytest
from kubernetes import client
from tests.kube.cluster.toolchain import PROJECT
from tests.kube.support.chart import (
    BY_CLAIMS,
    BY_PLUGIN,
)
from tests.kube.support.installed import (
    GRACE_S,
    launching,
    order,
    share_of,
    shell_of,
    typed,
    until_suspended,
)
from tests.kube.support.waiting import until

pytestmark = pytest.mark.kube


def start_patient_pods(cluster, pods) -> None:
    """The Pods `claiming` and `asking`, and `past`, which bypasses the shim and is suspended."""
    where = pods.namespace
    amounts = {"memory": "2Gi", "coresPermille": "200"}
    request = {"deviceClassName": "vgpu.penstock.io", "capacity": {"requests": amounts}}
    client.ResourceV1Api(cluster.api).create_namespaced_resource_claim(
        where,
        {
            "metadata": {"name": "claiming"},  # of which its tenant has its name
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": request}]}},
        },
    )
    policy = {
        "apiVersion": "penstock.io/v1alpha1", "kind": "QuotaPolicy",
        "metadata": {"name": "patient"},
        "spec": {
            "selector": {"matchLabels": {"app": "past"}},
            "limits": {"memory": "2Gi", "cores": 20},
            "onExceed": {"measured": "suspend", "grace": "1s"},
        },
    }  # fmt: skip
    client.CustomObjectsApi(cluster.api).create_namespaced_custom_object(
        "penstock.io", "v1alpha1", where, "quotapolicies", policy
    )
    # Names of their own: tenants of other tests may still be going.
    claim, extended = launching("claiming"), launching("asking")
    claim["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "claiming"}]
    claim["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    limits = {"penstock.io/memory": "2Gi", "penstock.io/cores-permille": "200"}
    extended["spec"]["containers"][0]["resources"]["limits"] = limits
    past = launching("past", "past", labels={"app": "past"})  # its amounts are the policy's
    past["spec"]["containers"][0]["resources"]["limits"] = {"penstock.io/vgpu": "1"}
    for body in (claim, extended, past):
        pods.core.create_namespaced_pod(where, body)


def end_at_once(chart, pods, names: tuple[str, ...]) -> None:
    """Deletion resumes the Pods, each of which has something to say before it ends."""
    following = {name: chart.following(pods.namespace, name) for name in names}
    began_s = time.monotonic()
    pods.core.delete_collection_namespaced_pod(pods.namespace)
    for name, log in following.items():
        said, _ = log.communicate(timeout=GRACE_S)
        assert said.rstrip().endswith("the last line"), (name, said[-300:])
    until("they are gone", lambda: not pods.core.list_namespaced_pod(pods.namespace).items)
    assert time.monotonic() - began_s < GRACE_S / 2, "nobody waited for a grace period to end"


def test_suspended_pods_are_not_ready_and_deletion_resumes_them_in_both_modes(chart, cluster, pods):
    """Pods are suspended by order and by enforcement, and what keeps their condition is killed."""
    start_patient_pods(cluster, pods)
    nodes = {"claiming": BY_CLAIMS, "asking": BY_PLUGIN}
    for name in nodes:
        pods.until_phase(name, "Running", within_s=120)
        until(f"{name} is ready", lambda n=name: share_of(pods, n)[::3] == ("True", "True"))
        order(chart, nodes, name, "suspend", "--reason=for a while")
    for name, node in nodes.items():
        until_suspended(pods, name, "VgpuSuspendedByOrder", "for a while")
        cluster.on(node, "pkill", "-KILL", "-f", "penstock kube node")
        order(chart, nodes, name, "resume")
    for name in nodes:
        until(
            f"{name} is ready again",
            lambda n=name: share_of(pods, n)[::3] == ("True", "True"), within_s=120,
        )  # fmt: skip
        order(chart, nodes, name, "suspend")
    # by enforcement, as its policy says: who goes past the shim is stopped
    for name, reason in (
        *dict.fromkeys(nodes, "VgpuSuspendedByOrder").items(),
        ("past", "VgpuSuspended"),
    ):
        until_suspended(pods, name, reason, f"tenant {name}.")

    end_at_once(chart, pods, (*nodes, "past"))
    for node in nodes.values():
        until(
            "nothing is left of them",
            lambda n=node: json.loads(chart.on_agent(n, "penstock", "ps", "-o", "json")) == [],
        )


PAGE = PROJECT / "docs/how-to/kubernetes.md"


def commands_of(heading: str) -> list[str]:
    """The commands that the page shows below a heading, line by line."""
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    block = section.partition("```console\n")[2].partition("```")[0]
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def test_the_examples_and_the_documented_commands_for_suspension_work_as_printed(
    chart, cluster, pods
):
    shell = shell_of(cluster)
    for name in ("ranker", "scorer"):
        file = PROJECT / f"examples/kubernetes/{name}.yaml"
        chart.kubectl("apply", "--namespace", pods.namespace, "--filename", file)
    for name in ("ranker", "scorer"):
        pods.until_phase(name, "Running", within_s=120)
        until(f"{name} says what it gets", lambda n=name: "% of" in pods.log(n))
        assert pods.log(name).startswith("the device has 8.0 GiB for me\n")
        until(  # less is a busy machine's doing
            f"{name} gets its share",
            lambda n=name: 20 < float(pods.log(n).split(": ")[-1].split(" ")[0]) < 33,
        )
        *before, resume = [
            line.replace("team-a", pods.namespace).replace("ranker", name)
            for line in commands_of("Suspend and resume")
        ]
        assert " suspend " in before[-1]
        typed(before, shell)
        until_suspended(pods, name, "VgpuSuspendedByOrder", "for a while")
        typed([*before[:-1], resume], shell)
        until(f"{name} goes on", lambda n=name: share_of(pods, n)[::3] == ("True", "True"))
