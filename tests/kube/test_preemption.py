"""Preemption by the extender: Pods of a lower priority are evicted within their budgets.

Nodes here are objects without a kubelet; a Pod with a grace period ends when the
test deletes it.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes import client
from tests.kube.support.ledger_objects import node as node_object
from tests.kube.support.placing import Placing, devices, grants, node, pod
from tests.kube.support.pods import Pods
from tests.kube.support.waiting import until

from penstock.kube.extender.ledger import Kept, Ledger, ledger_of
from penstock.kube.extender.nominations import making_room_on, read_waiting, write_nomination
from penstock.kube.extender.preemption_forecast import (
    Asker,
    ForecastInput,
    is_enough,
    on_node,
    preemption,
    room_after,
)
from penstock.kube.objects.disruption_budgets import Budget, read_budget
from penstock.kube.objects.names import PLACED
from penstock.kube.objects.placement import write_placement
from penstock.model.share import Share
from penstock.scheduling.placement.pod_request import Ask, Request

if TYPE_CHECKING:
    from tests.kube.cluster import running

    from penstock.kube.objects.api_client import Object

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


def test_reserved_room_is_free_only_for_its_pod_and_more_important_ones():
    ledger = ledger_of([node_object("n1")], [holding("a", "n1-0", 70), holding("b", "n1-1", 60)])

    def fits(one: Asker) -> bool:
        with ledger.seen_by(one.uid, one.priority):
            return bool(ledger.survey(["n1"], one.request)[0])

    urgent = asker("urgent", 40, 10)
    choice = on_node(ledger, "n1", urgent, ForecastInput())
    assert choice
    assert [one.uid for one in choice.victims] in (["a"], ["b"])
    shares = room_after(ledger, choice, urgent, ForecastInput(), "binpack")
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


def test_a_pod_that_is_ending_is_waited_for_unless_that_takes_long():
    going = holding("a", "n1-0", 80, deletionTimestamp="1970-01-01T00:10:00Z")
    ledger = ledger_of([node_object("n1")], [going, holding("b", "n1-1", 80)])
    urgent = asker("urgent", 40, 10)
    soon, long = ForecastInput(now_s=590.0), ForecastInput(now_s=0.0)
    choice = on_node(ledger, "n1", urgent, soon)
    assert choice
    assert choice.victims == ()
    assert "being deleted" in preemption(ledger, ["n1"], urgent, "", soon)
    choice = on_node(ledger, "n1", urgent, long)
    assert choice
    assert [one.uid for one in choice.victims] == ["b"]
    patient = on_node(ledger, "n1", urgent, ForecastInput(now_s=0.0, soon_s=math.inf))
    assert patient
    assert patient.victims == (), "room is made there already: nobody else has to go"
    evicted = ForecastInput(evicted=["b"])  # though its object does not say so yet
    assert (on_node(ledger, "n1", urgent, evicted) or choice).victims == ()
    hung = on_node(ledger, "n1", urgent, ForecastInput(now_s=900.0))  # it should have gone long ago
    assert hung
    assert [one.uid for one in hung.victims] == ["b"]


def test_the_schedulers_own_victims_must_free_enough_of_the_devices_too():
    ledger = ledger_of([node_object("n1")], [holding("a", "n1-0", 70), holding("b", "n1-1", 70)])
    urgent = asker("urgent", 60, 10)
    assert not is_enough(ledger, "n1", urgent, {"somebody without devices"})
    assert is_enough(ledger, "n1", urgent, {"a"})
    assert not is_enough(ledger, "other", urgent, {"a"})
    assert not is_enough(Ledger(), "n1", urgent, {"a"})


def test_forecasts_of_preemption_name_priority_policy_and_budget():
    ledger = ledger_of(
        [node_object("n1")], [holding("a", "n1-0", 70, 5), holding("b", "n1-1", 70, 5)]
    )
    around = ForecastInput()

    def said(one: Asker, policy: str = "", around: ForecastInput = around) -> str:
        return preemption(ledger, ["n1"], one, policy, around)

    assert "on n1 without n/a (priority 5)" in said(asker("u", 60, 6)) or "n/b" in said(
        asker("u", 60, 6)
    )
    assert "below 5" in said(asker("u", 60, 5))
    assert "Never" in said(asker("u", 60, 6), "Never")
    assert "would not fit either" in said(asker("u", 90, 6))
    budgets = [Budget("n", "all", {}, 0), Budget("elsewhere", "all", {}, 0)]
    text = said(asker("u", 60, 6), "", ForecastInput(budgets))
    assert "PodDisruptionBudget n/all (allows 0) prevents the eviction of n/" in text
    of_one = [Budget("n", "one", {"matchLabels": {"app": "a"}}, 0), Budget("n", "none", None, 0)]
    assert "without n/b" in said(asker("u", 60, 6), "", ForecastInput(of_one))
    unreckoned = {"metadata": {"namespace": "n", "name": "x", "generation": 2}, "spec": {}}
    status = {"observedGeneration": 1, "disruptionsAllowed": 5}
    assert read_budget({**unreckoned, "status": status}).allowed == 0


def test_a_nomination_is_read_back_from_its_annotation_without_the_nodes_name_in_the_status():
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
    usual = "PreemptLowerPriority"
    made = {"urgent": (1000, usual), "middling": (500, usual), "patient": (1000, "Never")}
    for name, (value, policy) in made.items():
        api.create_priority_class(
            {"metadata": {"name": name}, "value": value, "preemptionPolicy": policy}
        )
    yield
    for name in made:
        api.delete_priority_class(name)


@pytest.fixture
def waiting(cluster, placing, classes):
    """One node of one device, with the Pods that hold it and wait for it."""
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
        """Makes a Pod of a priority class.

        One with a grace period ends when the test deletes it.
        """
        body = pod(name, priority=priority, vgpu=1, cores=100, **asked)
        body["metadata"]["labels"] = {"app": name}
        body["spec"]["terminationGracePeriodSeconds"] = grace_s
        self.pods.core.create_namespaced_pod(self.pods.namespace, body)

    def gone(self, name: str) -> None:
        self.pods.core.delete_namespaced_pod(name, self.pods.namespace, grace_period_seconds=0)

    def read(self, name: str) -> client.V1Pod:
        return self.pods.read(name)

    def all(self) -> list[client.V1Pod]:
        return self.pods.core.list_namespaced_pod(self.pods.namespace).items

    def nodes(self, begin: str) -> dict[str, str]:
        """The nodes of the Pods whose names begin with `begin`; empty: not placed yet."""
        return {
            one.metadata.name: one.spec.node_name or ""
            for one in self.all()
            if one.metadata.name.startswith(begin)
        }

    def stays(self, name: str) -> bool:
        return self.read(name).metadata.deletion_timestamp is None

    def runs(self, name: str) -> None:
        """Writes that the Pod runs, in place of a kubelet: budgets count only running Pods."""
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        namespace = self.pods.namespace
        self.pods.core.patch_namespaced_pod_status(name, namespace, {"status": status})

    @property
    def policy(self) -> client.PolicyV1Api:
        return client.PolicyV1Api(self.cluster.api)

    def budget(self, name: str, app: str, at_least: int) -> None:
        selector = {"matchLabels": {"app": app}}
        body = {
            "metadata": {"name": name},
            "spec": {"minAvailable": at_least, "selector": selector},
        }
        self.policy.create_namespaced_pod_disruption_budget(self.pods.namespace, body)

    def no_budget(self, name: str) -> None:
        self.policy.delete_namespaced_pod_disruption_budget(name, self.pods.namespace)

    def allowed(self) -> list[int]:
        found = self.policy.list_namespaced_pod_disruption_budget(self.pods.namespace).items
        return [one.status.disruptions_allowed for one in found if one.status]

    def placed(self, name: str) -> None:
        until(f"{name} is placed", lambda: self.read(name).spec.node_name == "one", WAITS_S)

    def plain(self, name: str) -> Object:
        return client.ApiClient().sanitize_for_serialization(self.read(name))

    def told(self, name: str, reason: str) -> str:
        """The messages of a Pod's events of that reason."""
        found = self.pods.core.list_namespaced_event(
            self.pods.namespace, field_selector=f"involvedObject.name={name},reason={reason}"
        )
        return " | ".join(one.message for one in found.items)

    def explained(self, name: str) -> str:
        """The output of `penstock explain`."""
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
def test_room_is_made_within_budgets_and_kept_for_its_pod_when_all_processes_are_killed(
    placing, waiting
):
    waiting.make("guarded", grace_s=60, memory="70Gi")
    waiting.placed("guarded")
    waiting.runs("guarded")
    waiting.budget("keep", "guarded", at_least=1)
    waiting.make("equal", memory="40Gi")
    waiting.make("patient", "patient", memory="40Gi")
    waiting.make("urgent", "urgent", memory="40Gi")
    held = f"PodDisruptionBudget {waiting.pods.namespace}/keep (allows 0) prevents the eviction"
    until("told", lambda: held in waiting.told("urgent", "PreemptionHeld"), WAITS_S)
    assert f"preemption is held back: {held}" in waiting.explained("urgent")
    assert "its preemptionPolicy is Never" in waiting.explained("patient")
    assert "no Pod with a share has a priority below 0" in waiting.explained("equal")
    assert waiting.stays("guarded")
    waiting.gone("patient")

    waiting.no_budget("keep")
    until("it goes", lambda: not waiting.stays("guarded"), WAITS_S)
    until("told", lambda: "40Gi and 10%" in waiting.told("guarded", "Preempted"), WAITS_S)
    assert "of priority 1000" in waiting.told("guarded", "Preempted")
    until("named", lambda: waiting.read("urgent").status.nominated_node_name == "one", WAITS_S)
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
def test_pods_that_cannot_be_evicted_are_passed_over_and_none_goes_in_vain_or_for_an_equal(
    placing, waiting
):
    waiting.make("low", memory="40Gi")
    waiting.placed("low")
    waiting.runs("low")
    for name in ("first", "second"):  # both allow it, but the API server evicts nobody who has two
        waiting.budget(name, "low", at_least=0)
    until("reckoned", lambda: waiting.allowed() == [1, 1], WAITS_S)
    waiting.make("middle", "middling", memory="40Gi")
    waiting.placed("middle")
    # Killed just after it had written for whom room is made: nobody has been evicted yet.
    placing.kill()
    waiting.make("third", "urgent", memory="40Gi")
    body = write_nomination(waiting.read("third").metadata.uid, "one", "somebody")
    waiting.pods.core.patch_namespaced_pod_status("third", waiting.pods.namespace, body)
    placing.start_extender()
    waiting.placed("third")  # without a grace all of it happens by itself
    assert "low (priority 0) on one" in waiting.told("third", "PreemptionHeld")
    assert "middle (priority 500)" in waiting.told("third", "Preempting")
    metrics = placing.ask("metrics") or b""
    for result in (b"refused", b"evicted"):
        assert b'penstock_place_evictions_total{result="%s"} ' % result in metrics
    waiting.make("fourth", "urgent", memory="50Gi")  # more than there is without the one below it
    until("it was tried", lambda: waiting.told("fourth", "FailedScheduling"), WAITS_S)
    assert "would not fit either" in waiting.explained("fourth")
    assert waiting.stays("third")
    assert waiting.stays("low")

    none = {"penstock.io/vgpu": "0"}
    waiting.pods.core.patch_node_status("one", {"status": {"capacity": none, "allocatable": none}})
    waiting.pods.core.delete_namespaced_pod("low", waiting.pods.namespace)
    waiting.make("slotless", memory="1Gi")
    unregistered = "no device plugin registered"
    until(
        "it waits for a kubelet that knows the device plugin",
        lambda: unregistered in waiting.told("slotless", "FailedScheduling"),
        WAITS_S,
    )
    assert unregistered in waiting.explained("slotless")
    some = {"penstock.io/vgpu": "512"}
    waiting.pods.core.patch_node_status("one", {"status": {"capacity": some, "allocatable": some}})
    waiting.placed("slotless")  # at once: a scheduler that counted them would not look again


@pytest.mark.kube
def test_many_pods_at_once_get_room_without_a_needless_eviction(placing, cluster, pods, classes):
    """Each Pod needs two evictions on one of ten nodes, while the extender is killed."""
    names = [f"many-{at}" for at in range(10)]
    for name in names:
        cluster.core.create_node(node(name, devices(name, 2)))
    try:
        waiting = Waiting(cluster, pods)
        for at in range(80):
            waiting.make(f"low-{at}", memory="20Gi")
        until("all are placed", lambda: all(waiting.nodes("low").values()), WAITS_S)
        for at in range(12):
            waiting.make(f"urgent-{at}", "urgent", memory="40Gi")
        until("some have gone", lambda: len(waiting.nodes("low")) < 76, WAITS_S)
        placing.kill()
        placing.start_extender()
        until("all are placed", lambda: all(waiting.nodes("urgent").values()), WAITS_S)
        assert len(waiting.nodes("low")) == 80 - 2 * 12
        held = grants([waiting.plain(one.metadata.name) for one in waiting.all()])
        assert max(figure for (_, what), figure in held.items() if what == "memory") == 80 * GIB
    finally:
        for name in names:
            cluster.core.delete_node(name)
