"""Claims that the stock scheduler allocates: what containers get, and why one waits."""

from __future__ import annotations

import json
import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from kubernetes import client
from tests.kube.cluster import images
from tests.kube.support.claims import (
    CLASS,
    DRIVER,
    LOOK,
    PARAMETERS,
    events,
    look,
    quota_of,
    running,
    seen,
    share,
)
from tests.kube.support.pods import INSIDE
from tests.kube.support.waiting import until

from penstock.kube.objects.names import RESIZE

if TYPE_CHECKING:
    from tests.kube.support.pods import Pods
from tests.kube.support.claims import nothing_left

pytestmark = pytest.mark.kube


MIB = 1 << 20


def test_fifty_pods_each_get_their_own_quota_while_processes_are_killed(
    cluster, pods, claims, dra_nodes, tmp_path
):
    wanted = {f"pod-{number}": (1024 + 32 * number, 20 + number) for number in range(50)}
    for name, (memory_mib, cores_permille) in wanted.items():
        claim = claims.make(name, **share(memory_mib, cores_permille))
        # A kubelet that is killed while it starts a container has failed to: it tries again.
        look(pods, name, claim, "stay", restart="Always")
    first, second = dra_nodes.values()
    first.beside.restart(signal.SIGKILL)
    second.agent.restart(signal.SIGKILL)
    cluster.process(f"{first.name}-kubelet").kill()
    until("twenty Pods run", lambda: len(running(pods)) >= 20, within_s=120)
    second.beside.restart(signal.SIGKILL)
    first.agent.restart(signal.SIGKILL)
    until("fifty Pods run", lambda: len(running(pods)) == 50, within_s=240)

    sums: Counter = Counter()
    for name, (memory_mib, cores_permille) in wanted.items():
        answer = until(f"{name} says what it sees", lambda n=name: seen(pods, n))
        (device,) = answer["devices"]
        assert (device["memory_bytes"], device["beyond"], device["within"]) == (
            memory_mib * MIB,
            2,
            0,
        )
        assert answer["nvml_bytes"] == [memory_mib * MIB]
        (limit,) = quota_of(answer, tmp_path).limits.devices
        assert (limit.cores_permille, limit.memory_bytes) == (cores_permille, memory_mib * MIB)
        (result,) = claims.results(name)
        assert result.device == device["uuid"].lower() == limit.uuid.lower()
        sums[result.pool, result.device, "cores"] += cores_permille
        sums[result.pool, result.device, "memory"] += memory_mib
    assert {pool for pool, _, _ in sums} == set(dra_nodes), "both nodes have some"
    assert all(
        total <= (1000 if what == "cores" else 143771) for (_, _, what), total in sums.items()
    )
    owners = Counter(len(node.tenants()) for node in dra_nodes.values())
    assert sum(count * times for count, times in owners.items()) == 50, "one tenant a claim"
    for node in dra_nodes.values():
        node.until_ready()

    pods.core.delete_collection_namespaced_pod(pods.namespace)
    nothing_left(dra_nodes)


def test_a_finished_pod_frees_its_share_and_a_pod_that_does_not_fit_waits_with_a_reason(
    pods, claims, dra_nodes, tmp_path
):
    # Nearly all of each of the four devices, then one that fits nowhere until another has ended.
    for number in range(4):
        look(pods, f"large-{number}", claims.make(f"large-{number}", **share(100_000, 900)), "stay")
    for number in range(4):
        until(f"large-{number} says", lambda n=number: seen(pods, f"large-{n}"))
    look(pods, "waiting", claims.make("waiting", **share(1024, 200)))
    why = until(
        "the scheduler says why it waits", lambda: events(pods, "waiting").get("FailedScheduling")
    )
    assert "cannot allocate all claims" in why
    # An allocated claim does not grow.
    wish = {"metadata": {"annotations": {RESIZE: '{"main": {"memory": "120Gi"}}'}}}
    pods.core.patch_namespaced_pod("large-0", pods.namespace, wish)
    until(
        "it is told that it does not grow",
        lambda: (
            "an allocated claim cannot change"
            in events(pods, "large-0").get("VgpuResizeRefused", "")
        ),
    )
    claim = claims.make("small", **share(4096, 100))  # each has a context of half a GiB
    start_job(pods, "small", claim)
    ends = "job-name=small"
    (ended,) = until(
        "a Job whose containers share one claim has finished",
        lambda: [
            one for one in pods.core.list_namespaced_pod(pods.namespace, label_selector=ends).items
            if one.status.phase == "Succeeded"
        ],
        within_s=120,
    )  # fmt: skip
    answers = [said_by(pods, ended.metadata.name, of) for of in ("first", "side", "main")]
    pages = {quota_of(one, tmp_path).limits.devices[0].cores_permille for one in answers}
    assert pages == {100}, "init containers and sidecars share the slot"
    assert len({one["devices"][0]["uuid"] for one in answers}) == 1
    # Deleted without grace it is gone from the API while its container still runs: whoever gets its
    # share has to wait for that, and does.
    pods.core.delete_namespaced_pod("large-2", pods.namespace, grace_period_seconds=0)
    pods.until_phase("waiting", "Succeeded")
    assert "FailedPrepareDynamicResources" not in events(pods, "waiting")
    until(
        "what ended is given back, though Pods and claims are there",
        lambda: not [t for n in dra_nodes.values() for t in n.tenants() if t[0] in "sw"],
    )
    assert claims.read("small").metadata.uid
    assert pods.read(ended.metadata.name).status.phase == "Succeeded"


def start_job(pods: Pods, name: str, claim: dict) -> None:
    """A Job of an init container, a sidecar and a main container that share one claim.

    It ends by itself.
    """

    def container(of: str, *words: str, **more: str) -> dict:
        return {
            "name": of, "image": images.DEBIAN, "command": ["python3", str(LOOK), *words],
            "volumeMounts": [{"name": "inside", "mountPath": str(INSIDE), "readOnly": True}],
            "resources": {"claims": [{"name": "gpu"}]}, **more,
        }  # fmt: skip

    spec = {
        "initContainers": [
            container("first"), container("side", "stay", restartPolicy="Always"),
        ],
        "containers": [container("main")],
        "resourceClaims": [{"name": "gpu", **claim}],
        "volumes": [{"name": "inside", "hostPath": {"path": str(INSIDE)}}],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
    }  # fmt: skip
    client.BatchV1Api(pods.core.api_client).create_namespaced_job(
        pods.namespace, {"metadata": {"name": name}, "spec": {"template": {"spec": spec}}}
    )


def said_by(pods: Pods, name: str, of: str) -> dict:
    """What the program in one of a Pod's containers said."""
    answer = pods.core.read_namespaced_pod_log(
        name, pods.namespace, container=of, _request_timeout=10, _preload_content=False
    )
    return json.loads(answer.data.decode().splitlines()[0])


ALTERNATIVES = {
    "devices": {
        "requests": [{
            "name": "gpu",
            "firstAvailable": [
                {"name": "huge", "deviceClassName": CLASS,
                 "capacity": {"requests": {"memory": "900Gi"}}},
                {"name": "small", "deviceClassName": CLASS,
                 "capacity": {"requests": share(1536, 33)}},
            ],
        }],
        "config": [{
            "requests": ["gpu/small"],
            "opaque": {"driver": DRIVER, "parameters": {**PARAMETERS, "mode": "elastic"}},
        }],
    }
}  # fmt: skip


def shrinks_and_grows_back(dra_nodes, tenants) -> None:
    """An administrator resizes the tenant of the claim `both` within its accounted share."""
    both_on = next(node for node in dra_nodes.values() if any(
        name.startswith("both.") for name in node.tenants()))  # fmt: skip
    (shared,) = (name for name in tenants if name.startswith("both."))
    less = both_on.run("quota", "set", shared, "--memory=2Gi", "--cores=10")
    assert less.returncode == 0, less.stderr
    until(
        "less holds at once", lambda: both_on.tenants()[shared].devices[0].memory_bytes == 2 << 30
    )
    more = both_on.run("quota", "set", shared, "--memory=4Gi")
    assert more.returncode == 2
    assert "accounted for 3Gi and 22.2 %" in more.stderr
    again = both_on.run("quota", "set", shared, "--memory=3Gi", "--cores=22.2")
    assert again.returncode == 0, again.stderr


def test_claims_from_templates_shared_defaulted_alternative_and_elastic_ones_become_tenants(
    pods, claims, dra_nodes, tmp_path
):
    api, where = claims.api, pods.namespace
    template = {"spec": claims.spec(config={"mode": "elastic"}, **share(2048, 111))}
    api.create_namespaced_resource_claim_template(
        where, {"metadata": {"name": "each"}, "spec": template}
    )
    for name in ("a", "b"):
        look(pods, name, {"resourceClaimTemplateName": "each"}, "stay")
    both = claims.make("both", **share(3072, 222))
    for name in ("c", "d"):
        look(pods, name, both, "stay")
    look(pods, "e", claims.make("nothing-named"), "stay")
    pair = claims.make("pair", count=2, **share(1024, 50))
    look(pods, "f", pair, "stay")
    api.create_namespaced_resource_claim(
        where, {"metadata": {"name": "either"}, "spec": ALTERNATIVES}
    )
    look(pods, "g", {"resourceClaimName": "either"}, "stay")

    said = {name: until(f"{name} says", lambda n=name: seen(pods, n)) for name in "abcdefg"}
    limits = {name: quota_of(answer, tmp_path).limits for name, answer in said.items()}
    cores = {name: [one.cores_permille for one in found.devices] for name, found in limits.items()}
    assert cores == {
        "a": [111], "b": [111], "c": [222], "d": [222], "e": [125], "f": [50, 50], "g": [33]
    }  # fmt: skip
    assert {name for name, found in limits.items() if found.mode == "elastic"} == {"a", "b", "g"}
    assert said["e"]["nvml_bytes"] == [17971 * MIB], "an eighth of the device"
    assert len({one["uuid"] for one in said["f"]["devices"]}) == 2
    tenants = {name: row for node in dra_nodes.values() for name, row in node.tenants().items()}
    assert len(tenants) == 6, "c and d are one"
    assert len([name for name in tenants if name.startswith(("a.", "b."))]) == 2, "named by Pods"
    assert len([name for name in tenants if name.startswith("both.")]) == 1

    shrinks_and_grows_back(dra_nodes, tenants)

    pods.core.delete_namespaced_pod("c", where)
    until("c is gone", lambda: "c" not in {pod.metadata.name for pod in running(pods)})
    still = {name for node in dra_nodes.values() for name in node.tenants()}
    assert still == tenants.keys(), "d still has it"
    pods.core.delete_collection_namespaced_pod(where)
    nothing_left(dra_nodes)


def test_a_claim_that_cannot_be_prepared_says_why_in_its_pods_events(pods, claims, dra_nodes):
    look(pods, "wrong", claims.make("wrong", config={"mode": "elastics"}, **share(1024, 10)))
    look(pods, "key", claims.make("key", config={"polcy": "x"}, **share(1024, 10)))
    message = until(
        "the kubelet says why",
        lambda: events(pods, "wrong").get("FailedPrepareDynamicResources"),
    )
    assert "mode is 'elastics', not one of strict, elastic" in message
    assert "correct them in the device class" in message
    message = until(
        "the kubelet says why", lambda: events(pods, "key").get("FailedPrepareDynamicResources")
    )
    assert "did you mean policy?" in message
    assert {name for n in dra_nodes.values() for name in n.tenants()} == set()
