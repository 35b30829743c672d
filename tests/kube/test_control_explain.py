"""Why Pods wait for claims: each cause, provoked, with its figure."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes import client
from tests.kube.cluster import layout
from tests.kube.support import controlling
from tests.kube.support.controlling import GROUP, Things
from tests.kube.support.waiting import until

from penstock.kube.controller.cluster_queries import account

if TYPE_CHECKING:
    from tests.kube.cluster import running
    from tests.kube.support.pods import Pods

pytestmark = pytest.mark.kube


def device(name: str, memory: str, model: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "allowMultipleAllocations": True,
        "capacity": {
            "memory": {"value": memory, "requestPolicy": {"default": memory}},
            "coresPermille": {"value": "1000", "requestPolicy": {"default": "1000"}},
        },
        "attributes": {"model": {"string": model}, "uuid": {"string": name}},
        **more,
    }


WIPED_AFTER_S = 30  # a kubelet's own delay


def settled(cluster: running.Cluster, api: client.ResourceV1Api) -> bool:
    """Whether no kubelet is about to remove slices of its node, those of a test included.

    It does so half a minute after the last driver of its node ended, and after its own start.
    """
    if any(one.spec.driver == GROUP for one in api.list_resource_slice().items):
        return False
    started = [cluster.process(f"{node}-kubelet").create_time() for node in layout.NODES]
    return time.time() - max(started) > WIPED_AFTER_S + 5


@pytest.fixture
def slices(cluster):
    """Two devices of 80Gi on the first node, one of 40Gi and a broken one on the second."""
    controlling.device_class(cluster)
    api = client.ResourceV1Api(cluster.api)
    until("no kubelet removes slices any more", lambda: settled(cluster, api), within_s=120)
    taint = {"key": "penstock.io/unhealthy", "value": "xid-79", "effect": "NoSchedule"}
    offered = {
        "node-1": [device("a", "80Gi", "H100"), device("b", "80Gi", "H100")],
        "node-2": [device("c", "40Gi", "A100"), device("d", "20Gi", "L4", taints=[taint])],
    }
    for node, devices in offered.items():
        api.create_resource_slice(
            {
                "metadata": {"name": f"explained-{node}"},
                "spec": {
                    "driver": GROUP,
                    "nodeName": node,
                    "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                    "devices": devices,
                },
            }
        )
    yield
    for node in offered:
        with contextlib.suppress(client.exceptions.NotFoundException):
            api.delete_resource_slice(f"explained-{node}")
    controlling.no_device_class(cluster)


@dataclass
class Waiting:
    """Makes Pods with claims that wait, and reads why."""

    cluster: running.Cluster
    pods: Pods
    things: Things

    def claim(self, name: str, **asked: Any) -> None:
        """Makes a claim, which is not allocated yet."""
        self.things.resources.create_namespaced_resource_claim(
            self.pods.namespace, self.things.claim(name, **asked)
        )

    def pod(self, name: str, claim: str = "", cpu: str = "1m", **spec: Any) -> None:
        """Makes a Pod that uses `claim`, or else the claim of its own name."""
        container = {
            "name": "main",
            "image": "penstock.test/debian:1",
            "command": ["sleep", "1000"],
            "resources": {"claims": [{"name": "gpu"}], "requests": {"cpu": cpu}},
        }
        body = {
            "metadata": {"name": name},
            "spec": {
                "containers": [container],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": claim or name}],
                "terminationGracePeriodSeconds": 0,
                **spec,
            },
        }
        self.cluster.core.create_namespaced_pod(self.pods.namespace, body)

    def both(self, name: str, *, spec: dict[str, Any] | None = None, **asked: Any) -> None:
        """Makes a Pod and its claim."""
        self.claim(name, **asked)
        self.pod(name, **(spec or {}))

    def start_unsaid(self) -> None:
        """Makes a Pod that is ready but for the condition that a node's agent would write.

        No node here has an agent.
        """
        container = {"name": "main", "image": "penstock.test/debian:1", "command": ["sleep", "999"]}
        spec = {
            "containers": [container],
            "readinessGates": [{"conditionType": "penstock.io/running"}],
            "terminationGracePeriodSeconds": 0,
        }
        body = {"metadata": {"name": "unsaid"}, "spec": spec}
        self.cluster.core.create_namespaced_pod(self.pods.namespace, body)

    def explained(self, name: str) -> str:
        """All causes of a Pod's waiting, in words."""
        found = asyncio.run(account(self.cluster.layout.kubeconfig, self.pods.namespace, name))
        return "; ".join(found.why.causes)

    def command(self, name: str, *options: str) -> str:
        """What `penstock explain` prints."""
        done = subprocess.run(
            [
                sys.executable, "-m", "penstock", "explain", f"pod/{name}", *options,
                "-n", self.pods.namespace, "--kubeconfig", self.cluster.layout.kubeconfig,
            ],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return done.stdout or done.stderr

    def until_explained(self, name: str, cause: str) -> None:
        """Returns when `cause` is among the causes; fails with those that are named instead."""
        end = time.monotonic() + 30
        while cause not in (said := self.explained(name)):
            time.sleep(0.2)
            assert time.monotonic() < end, f"{name}: {said!r} does not name {cause!r}"

    def looked_at(self, *names: str) -> None:
        """Returns when the scheduler has written a condition of each Pod."""
        for name in names:
            until(f"{name} was looked at", lambda n=name: self.pods.read(n).status.conditions)


CAUSES = {
    "memory": "1 node: memory short by 2Gi at best",
    "device-memory": "2 nodes: more memory is asked for than a device has, 80Gi at best",
    "cores": "2 nodes: cores short by 5% at best",
    "both": "1 node: memory short by 15Gi and cores short by 15% at best",
    "apart": "1 node: memory and cores are free, but not on the same device",
    "count": "2 nodes: 3 devices are asked for, 2 at best are there",
    "broken": "1 node: no healthy device",
    "model": "1 node: no device of the model that is asked for",
    "selected": "2 nodes: not selected by the Pod's nodeSelector or affinity",
    "cpu": "cpu short by 99",
    "bound": "1 node: its claim 'hold-c' is allocated on node node-2",
    "no-claim": "ResourceClaim 'no-claim' does not exist",
    "no-class": "DeviceClass 'nobodys', which claim 'no-class' requests, does not exist",
    "no-template": "its claim 'gpu' could not be created: ",
    "gated": "held back by its scheduling gates: example.com/later",
    "nobody": "no scheduler named 'nobody' has reported on it",
}


def make_waiting(w: Waiting) -> None:
    """A Pod for each cause, named after it."""
    model = 'device.driver == "penstock.io" && device.attributes["penstock.io"].model == "{}"'
    w.both("memory", memory="62Gi", cores=50)
    w.both("device-memory", memory="100Gi", cores=50)
    w.both("cores", memory="5Gi", cores=850)
    w.both("both", memory="75Gi", cores=950)
    w.both("apart", memory="50Gi", cores=300)
    w.both("count", memory="1Gi", cores=10, count=3)
    w.both("broken", memory="1Gi", cores=10, selector=model.format("L4"))
    w.both("model", memory="1Gi", cores=10, selector=model.format("L4"))
    w.both("selected", memory="1Gi", spec={"nodeSelector": {"disk": "tape"}})
    w.both("cpu", memory="1Gi", cores=10, spec={"cpu": "1000"})
    w.pod("bound", claim="hold-c", nodeSelector={"kubernetes.io/hostname": "node-1"})
    w.pod("no-claim")
    w.both("no-class", device_class="nobodys")
    w.both("gated", spec={"schedulingGates": [{"name": "example.com/later"}]})
    w.both("nobody", spec={"schedulerName": "nobody"})
    template = [{"name": "gpu", "resourceClaimTemplateName": "nowhere"}]
    w.pod("no-template", resourceClaims=template)


def test_each_cause_of_waiting_is_named_with_its_figure(cluster, pods, things, slices):
    """Of device a 10Gi and 80 % are free, of b 60Gi and 10 %, of c 30Gi and 50 %."""
    w = Waiting(cluster, pods, things)
    w.start_unsaid()
    for name, memory, cores in (("a", "70Gi", 200), ("b", "20Gi", 900), ("c", "10Gi", 500)):
        selector = f'device.attributes["penstock.io"].uuid == "{name}"'
        w.both(f"hold-{name}", memory=memory, cores=cores, selector=selector)
    for name in "abc":
        until(f"{name} is held", lambda n=name: pods.read(f"hold-{n}").spec.node_name)
    make_waiting(w)
    for name, cause in CAUSES.items():
        w.until_explained(name, cause)
    told = w.command("memory").splitlines()
    assert told[0] == f"pod {pods.namespace}/memory: Pending"
    assert CAUSES["memory"] in told[1]
    assert "reported by others: default-scheduler: 0/2 nodes are available" in told[2]
    assert json.loads(w.command("gated", "-o", "json"))["causes"] == [f"it is {CAUSES['gated']}"]
    assert "there is no Pod 'nought'" in w.command("nought")
    assert w.command("hold-a").startswith(f"pod {pods.namespace}/hold-a: Pending on node-1")

    with cordoned(cluster, "node-2"):
        w.both("cordoned", memory="25Gi", cores=500)
        w.looked_at("cordoned")
        assert "1 node: cordoned" in w.explained("cordoned")
    taint = {"key": "team", "value": "red", "effect": "NoSchedule"}
    with tainted(cluster, "node-2", taint):
        w.both("tainted", memory="25Gi", cores=501)
        w.looked_at("tainted")
        assert "1 node: tainted team=red:NoSchedule" in w.explained("tainted")

    def said(reason: str, name: str) -> str:
        events = cluster.core.list_namespaced_event(
            pods.namespace, field_selector=f"reason={reason},involvedObject.name={name}"
        ).items
        return "\n".join(event.message for event in events)

    # It may have told before the last of the slices was there: what it tells then is another cause.
    until(
        "the controller has told the Pod", lambda: CAUSES["memory"] in said("WhyPending", "memory")
    )
    # and one that runs is told why it is not ready, by somebody else than its node
    until("it was told", lambda: said("VgpuStateUnknown", "unsaid"), within_s=120)
    node = pods.read("unsaid").spec.node_name
    expected = (
        f"no agent on node {node} reports that its share runs (condition penstock.io/running)"
    )
    assert expected in said("VgpuStateUnknown", "unsaid")


@contextlib.contextmanager
def cordoned(cluster, node):
    cluster.core.patch_node(node, {"spec": {"unschedulable": True}})
    yield
    cluster.core.patch_node(node, {"spec": {"unschedulable": None}})


@contextlib.contextmanager
def tainted(cluster, node, taint):
    cluster.core.patch_node(node, {"spec": {"taints": [taint]}})
    yield
    cluster.core.patch_node(node, {"spec": {"taints": []}})
