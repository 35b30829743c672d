"""Pods of a lower priority go for one that lacks devices: by eviction, within budgets, once.

Nodes here are objects without a kubelet; a Pod with a grace goes when the test says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes import client
from tests.kube.placing import Placing, devices, node, pod
from tests.kube.pods import Pods
from tests.kube.test_ledger import node as node_object
from tests.kube.waiting import until

from penstock.kube.budgets import Budget, read_budget
from penstock.kube.names import PLACED
from penstock.kube.place.ledger import Kept, Ledger, ledger_of
from penstock.kube.place.nominated import making_room_on, read_waiting, write_nomination
from penstock.kube.place.outlook import (
    Asker,
    Surroundings,
    is_enough,
    on_node,
    preemption,
    room_after,
)
from penstock.kube.placed import Share, write_placement
from penstock.schedule.ask import Ask, Request

if TYPE_CHECKING:
    from tests.kube.pods import Pods

    from penstock.kube.api import Object

GIB = 1 << 30
WAITS_S = 120


def holding(uid: str, where: str, memory: int, priority: int = 0, **more: Any) -> Object:
    placement = {"main": {where: Share(memory * GIB, 100)}}
    metadata = {"uid": uid, "name": uid, "namespace": "n", "labels": {"app": uid}}
    return {
        "metadata": {
            **metadata, "annotations": {PLACED: write_placement(placement)}, **more,
        },
        "spec": {
            "nodeName": where.rpartition("-")[0], "containers": [{"name": "main"}],
            "priority": priority,
        },
        "status": {"phase": "Running"},
    }  # fmt: skip


def asker(uid: str, memory: int, priority: int) -> Asker:
    return Asker(
        uid, priority, Request((Ask("main", memory_bytes=memory * GIB, cores_permille=100),))
    )


def test_kept_room_is_free_for_its_pod_and_more_important_ones_alone():
    ledger = ledger_of([node_object("n1")], [holding("a", "n1-0", 70), holding("b", "n1-1", 60)])

    def fits(one: Asker) -> bool:
        with ledger.seen_by(one.uid, one.priority):
            return bool(ledger.survey(["n1"], one.request)[0])

    urgent = asker("urgent", 40, 10)
    choice = on_node(ledger, "n1", urgent, Surroundings())
    assert choice
    assert [one.uid for one in choice.victims] in (["a"], ["b"])
    shares = room_after(ledger, choice, urgent, 0.0, "binpack")
    assert shares
    ledger.keep("urgent", Kept(("n", "urgent"), "n1", 10, shares))
    gone = choice.victims[0]
    ledger.pod_changed(gone.pod, gone, None)
    assert fits(urgent)
    assert not fits(asker("equal", 50, 10))
    assert fits(asker("more", 50, 11))
    # while it is being bound its room counts once, and again if that fails
    ledger.assume("urgent", ("n", "urgent"), "n1", shares)
    assert fits(asker("small", 20, 0))
    assert not fits(asker("equal", 50, 10))
    ledger.release("urgent")
    assert fits(urgent)
    assert not fits(asker("equal", 50, 10))
    ledger.keep_no_longer("urgent")
    assert fits(asker("equal", 50, 10))


def test_who_goes_already_is_waited_for_unless_that_takes_long():
    going = holding("a", "n1-0", 80, deletionTimestamp="1970-01-01T00:10:00Z")
    ledger = ledger_of([node_object("n1")], [going, holding("b", "n1-1", 80)])
    urgent = asker("urgent", 40, 10)
    soon, long = Surroundings(now_s=590.0), Surroundings(now_s=0.0)
    choice = on_node(ledger, "n1", urgent, soon)
    assert choice
    assert choice.victims == ()
    assert "going" in preemption(ledger, ["n1"], urgent, "", soon)
    choice = on_node(ledger, "n1", urgent, long)
    assert choice
    assert [one.uid for one in choice.victims] == ["b"]
    hung = on_node(ledger, "n1", urgent, Surroundings(now_s=900.0))  # it should have gone long ago
    assert hung
    assert [one.uid for one in hung.victims] == ["b"]


def test_what_the_scheduler_would_evict_has_to_be_enough_for_the_devices_too():
    ledger = ledger_of([node_object("n1")], [holding("a", "n1-0", 70), holding("b", "n1-1", 70)])
    urgent = asker("urgent", 60, 10)
    assert not is_enough(ledger, "n1", urgent, {"somebody without devices"})
    assert is_enough(ledger, "n1", urgent, {"a"})
    assert not is_enough(ledger, "other", urgent, {"a"})
    assert not is_enough(Ledger(), "n1", urgent, {"a"})


def test_outlooks_name_priority_policy_and_budget():
    ledger = ledger_of(
        [node_object("n1")], [holding("a", "n1-0", 70, 5), holding("b", "n1-1", 70, 5)]
    )
    around = Surroundings()

    def said(one: Asker, policy: str = "", around: Surroundings = around) -> str:
        return preemption(ledger, ["n1"], one, policy, around)

    assert "on n1 without n/a (priority 5)" in said(asker("u", 60, 6)) or "n/b" in said(
        asker("u", 60, 6)
    )
    assert "below 5" in said(asker("u", 60, 5))
    assert "Never" in said(asker("u", 60, 6), "Never")
    assert "would not fit either" in said(asker("u", 90, 6))
    assert "keeps it from every node" in preemption(ledger, [], asker("u", 90, 6), "", around)
    budgets = [Budget("n", "all", {}, 0), Budget("elsewhere", "all", {}, 0)]
    text = said(asker("u", 60, 6), "", Surroundings(budgets))
    assert "PodDisruptionBudget n/all (allows 0) holds back the eviction of n/" in text
    of_one = [Budget("n", "one", {"matchLabels": {"app": "a"}}, 0), Budget("n", "none", None, 0)]
    assert "without n/b" in said(asker("u", 60, 6), "", Surroundings(of_one))
    unreckoned = {"metadata": {"namespace": "n", "name": "x", "generation": 2}, "spec": {}}
    status = {"observedGeneration": 1, "disruptionsAllowed": 5}
    assert read_budget({**unreckoned, "status": status}).allowed == 0


def test_what_is_written_of_a_nomination_is_read_again_without_the_nodes_name_in_the_status():
    limits = {"penstock.io/memory": "1Gi"}
    waiting = {
        "metadata": {"uid": "u", "name": "p", "namespace": "n"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}], "priority": 7},
        "status": write_nomination("u", "node-1", "n/a: b")["status"],
    }
    del waiting["status"]["nominatedNodeName"]  # as a scheduler clears it
    found = read_waiting(waiting)
    assert found
    assert (found.node, found.nominated, found.priority) == ("node-1", "", 7)
    for gone in ({"deletionTimestamp": "x"}, {}):
        waiting["metadata"] |= gone
        waiting["spec"] |= {} if gone else {"nodeName": "n"}
        assert read_waiting(waiting) is None


@pytest.fixture(scope="module")
def placing(cluster, tmp_path_factory):
    made = Placing(cluster, tmp_path_factory.mktemp("preempting"))
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def classes(cluster):
    api = client.SchedulingV1Api(cluster.api)
    for name, policy in (("urgent", "PreemptLowerPriority"), ("patient", "Never")):
        api.create_priority_class(
            {"metadata": {"name": name}, "value": 1000, "preemptionPolicy": policy}
        )
    yield
    for name in ("urgent", "patient"):
        api.delete_priority_class(name)


@pytest.fixture(scope="module")
def waiting(cluster, placing, classes):
    """One node of one device, and whoever holds it and waits for it."""
    made = Waiting(cluster, Pods.in_new_namespace(cluster.core))
    cluster.core.create_node(node("one", devices("one", 1)))
    yield made
    made.pods.remove()
    cluster.core.delete_node("one")


@dataclass
class Waiting:
    cluster: running.Cluster
    pods: Pods

    def make(self, name: str, priority: str = "", grace_s: int = 0, **asked: Any) -> None:
        """Of that class; with a grace it goes when the test deletes it."""
        body = pod(name, priority=priority, vgpu=1, cores=100, **asked)
        body["metadata"]["labels"] = {"app": name}
        body["spec"]["terminationGracePeriodSeconds"] = grace_s
        self.pods.core.create_namespaced_pod(self.pods.namespace, body)

    def gone(self, name: str) -> None:
        self.pods.core.delete_namespaced_pod(name, self.pods.namespace, grace_period_seconds=0)

    def status(self, name: str, status: Object) -> None:
        """As a kubelet would say it."""
        namespace = self.pods.namespace
        self.pods.core.patch_namespaced_pod_status(name, namespace, {"status": status})

    def placed(self, name: str) -> None:
        until(f"{name} is placed", lambda: self.pods.read(name).spec.node_name == "one", WAITS_S)

    def plain(self, name: str) -> Object:
        return client.ApiClient().sanitize_for_serialization(self.pods.read(name))

    def told(self, name: str, reason: str) -> str:
        """What Events of that reason say of a Pod."""
        found = self.pods.core.list_namespaced_event(
            self.pods.namespace, field_selector=f"involvedObject.name={name},reason={reason}"
        )
        return " | ".join(one.message for one in found.items)

    def explained(self, name: str) -> str:
        """By the command."""
        done = subprocess.run(
            [
                sys.executable, "-m", "penstock", "explain", f"pod/{name}",
                "-n", self.pods.namespace, "--kubeconfig", self.cluster.layout.kubeconfig,
                "-o", "json",
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return "; ".join(json.loads(done.stdout)["causes"])


def nodes_that_fit(placing: Placing, one: Object) -> list[str]:
    answer = placing.ask("filter", {"Pod": one, "NodeNames": ["one"]})
    assert answer
    found: list[str] = json.loads(answer)["NodeNames"]
    return found


@pytest.mark.kube
def test_a_budget_holds_preemption_back_and_events_and_explain_say_so(waiting):
    waiting.make("guarded", grace_s=60, memory="70Gi")
    waiting.placed("guarded")
    # no kubelet says so: it runs, or no budget would count it
    waiting.status(
        "guarded", {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    )
    budget = {
        "metadata": {"name": "keep"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
    }
    policy = client.PolicyV1Api(waiting.cluster.api)
    namespace = waiting.pods.namespace
    policy.create_namespaced_pod_disruption_budget(namespace, budget)
    waiting.make("equal", memory="40Gi")
    waiting.make("patient", "patient", memory="40Gi")
    waiting.make("urgent", "urgent", memory="40Gi")
    held = f"PodDisruptionBudget {namespace}/keep (allows 0) holds back the eviction of"
    until("told", lambda: held in waiting.told("urgent", "PreemptionHeld"), WAITS_S)
    assert f"preemption is held back: {held}" in waiting.explained("urgent")
    assert "its preemptionPolicy is Never" in waiting.explained("patient")
    assert "no Pod with a share has a priority below 0" in waiting.explained("equal")
    assert waiting.pods.read("guarded").metadata.deletion_timestamp is None
    waiting.gone("patient")
    policy.delete_namespaced_pod_disruption_budget("keep", namespace)
    until("it goes", lambda: waiting.pods.read("guarded").metadata.deletion_timestamp, WAITS_S)


@pytest.mark.kube
def test_room_that_was_made_is_kept_for_its_pod_though_extender_and_scheduler_are_killed(
    placing, waiting
):
    """Goes on where the test above ends: somebody was evicted, and has not gone yet."""
    pods = waiting.pods
    until("told", lambda: "40Gi and 10%" in waiting.told("guarded", "Preempted"), WAITS_S)
    assert "of priority 1000" in waiting.told("guarded", "Preempted")
    until("named", lambda: pods.read("urgent").status.nominated_node_name == "one", WAITS_S)
    assert "room is being made for it on one" in waiting.explained("urgent")
    placing.kill("kube-scheduler")
    placing.kill()
    waiting.make("sneaky", memory="50Gi")
    waiting.gone("guarded")
    placing.start_extender()
    assert nodes_that_fit(placing, waiting.plain("sneaky")) == []
    assert nodes_that_fit(placing, waiting.plain("urgent")) == ["one"]
    placing.start()
    waiting.placed("urgent")
    waiting.placed("equal")  # beside it
    until("its status says so", lambda: not making_room_on(waiting.plain("urgent")), WAITS_S)


@pytest.mark.kube
def test_nobody_goes_for_an_equal_or_in_vain_and_without_a_grace_all_happens_by_itself(
    placing, waiting
):
    pods = waiting.pods
    waiting.make("second", "urgent", memory="50Gi")  # more than the one below it has
    until("it waits", lambda: "fit either" in waiting.explained("second"), WAITS_S)
    until("it was tried", lambda: waiting.told("second", "FailedScheduling"), WAITS_S)
    waiting.make("third", "urgent", memory="35Gi")
    waiting.placed("third")
    assert pods.read("urgent").metadata.deletion_timestamp is None
    assert "evicted for Pod" in waiting.told("equal", "Preempted")
    metrics = placing.ask("metrics") or b""
    assert b'penstock_place_evictions_total{result="evicted"} 1.0' in metrics
    assert placing.running()


@pytest.mark.kube
def test_without_a_device_plugin_on_its_node_a_pod_waits_and_is_told_so(placing, waiting):
    none = {"penstock.io/vgpu": "0"}
    waiting.pods.core.patch_node_status(
        "one", {"status": {"capacity": none, "allocatable": none}}
    )  # fmt: skip
    waiting.make("slotless", memory="1Gi")

    def said() -> str:
        found = waiting.pods.read("slotless").status.conditions or []
        return " ".join(one.message or "" for one in found if one.type == "PodScheduled")

    until("it waits", lambda: "Insufficient penstock.io/vgpu" in said(), WAITS_S)
    assert "no device plugin registered" in waiting.explained("slotless")
