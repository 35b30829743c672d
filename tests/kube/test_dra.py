"""Claims on a real cluster: the stock scheduler gives out shares, the node's parts make them so."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from kubernetes import client
from tests.kube.claims import (
    CLASS,
    DRIVER,
    INSIDE,
    LOOK,
    PARAMETERS,
    Claims,
    events,
    look,
    quota_of,
    running,
    seen,
    share,
)
from tests.kube.cluster import images
from tests.kube.nodes import CDI, STATE, all_nodes
from tests.kube.waiting import until

from penstock.kube.kubelet.allocation import tenant_name
from penstock.kube.objects.names import RESIZE, WAY
from penstock.kube.objects.node_devices import read_devices

if TYPE_CHECKING:
    from tests.kube.pods import Pods

pytestmark = pytest.mark.kube

MIB = 1 << 20


@pytest.fixture(scope="module")
def dra_nodes(cluster):
    """Agents with two simulated H200 each, what runs beside them, and the device class."""
    api = client.ResourceV1Api(cluster.api)
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    with_class = {"metadata": {"name": CLASS}, "spec": {"selectors": [selector]}}
    with contextlib.suppress(client.ApiException):  # left by a run that was killed
        api.delete_device_class(CLASS)
    api.create_device_class(with_class)
    nodes = all_nodes(cluster)
    try:
        for node in nodes.values():
            node.start()
        yield nodes
    finally:
        for node in nodes.values():
            node.stop()
        api.delete_device_class(CLASS)


@pytest.fixture
def claims(pods):
    return Claims(pods)


def nothing_left(nodes) -> None:
    """Of tenants, devices for containers and the kubelets' own records of claims."""
    for node in nodes.values():
        until(f"{node.name} has no tenant", lambda n=node: n.tenants() == {})
        until(f"{node.name} has no CDI spec", lambda n=node: n.files(CDI) == [])
        until("nor a file of one", lambda n=node: n.files(f"{STATE}/tenants") == [])


def test_fifty_pods_with_fifty_quotas_get_each_its_own_while_processes_are_killed(
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


def test_a_node_that_is_given_to_the_other_way_has_no_slices_from_then_on(cluster, dra_nodes):
    """A kubelet wipes them half a minute after its driver has gone: claims would go there."""
    node = dra_nodes["node-2"]
    resources = client.ResourceV1Api(cluster.api)
    ours = f"spec.nodeName={node.name},spec.driver=penstock.io"

    def slices() -> list[str]:
        found = resources.list_resource_slice(field_selector=ours).items
        return [one.metadata.name for one in found]

    def label(way: str) -> None:
        cluster.core.patch_node(node.name, {"metadata": {"labels": {WAY: way}}})

    usual = node.beside.command
    node.beside.end()
    node.beside.command = (*usual, "--way-is-labelled")
    node.beside.start()
    try:
        node.until_ready()
        before = slices()
        assert before
        node.beside.end()  # for an upgrade: another comes, and what claims were given stays
        assert slices() == before
        node.beside.start()
        node.until_ready()
        label("extender")  # what the page says: the label, and at once the DaemonSet ends its Pod
        until("its slices are gone", lambda: not slices(), within_s=5)
        label("claims")
        until("and come again", slices)
        # the label while nobody looks, as when the Pod is ended before it has seen it
        node.beside.process().suspend()
        label("extender")
        outer, inner = node.beside.running, node.beside.process()
        inner.send_signal(signal.SIGTERM)
        inner.resume()
        outer.send_signal(signal.SIGCONT)  # nsenter stops with what it has started
        outer.wait(30)
        assert not slices()
    finally:
        label("claims")
        node.beside.end()
        node.beside.command = usual
        node.beside.start()
        node.until_ready()


def test_a_finished_pod_gives_back_and_what_does_not_fit_waits_with_a_reason(
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
    # What a claim was given does not grow, whoever asks.
    wish = {"metadata": {"annotations": {RESIZE: '{"main": {"memory": "120Gi"}}'}}}
    pods.core.patch_namespaced_pod("large-0", pods.namespace, wish)
    until(
        "it is told that it does not grow",
        lambda: "does not change while" in events(pods, "large-0").get("VgpuResizeRefused", ""),
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
    """An init container, a sidecar and a main one, all with the one claim; it ends by itself."""

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


def test_templates_shared_claims_defaults_alternatives_and_modes(pods, claims, dra_nodes, tmp_path):
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
    alternatives = {
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
    api.create_namespaced_resource_claim(
        where, {"metadata": {"name": "either"}, "spec": alternatives}
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
    assert "accounted 3Gi and 22.2 %" in more.stderr
    again = both_on.run("quota", "set", shared, "--memory=3Gi", "--cores=22.2")
    assert again.returncode == 0, again.stderr

    pods.core.delete_namespaced_pod("c", where)
    until("c is gone", lambda: "c" not in {pod.metadata.name for pod in running(pods)})
    still = {name for node in dra_nodes.values() for name in node.tenants()}
    assert still == tenants.keys(), "d still has it"
    pods.core.delete_collection_namespaced_pod(where)
    nothing_left(dra_nodes)


def test_what_cannot_be_prepared_says_why_on_the_pod(pods, claims, dra_nodes):
    look(pods, "wrong", claims.make("wrong", config={"mode": "elastics"}, **share(1024, 10)))
    look(pods, "key", claims.make("key", config={"polcy": "x"}, **share(1024, 10)))
    message = until(
        "the kubelet says why",
        lambda: events(pods, "wrong").get("FailedPrepareDynamicResources"),
    )
    assert "mode is 'elastics', not one of strict, elastic" in message
    assert "correct them in the claim" in message
    message = until(
        "the kubelet says why", lambda: events(pods, "key").get("FailedPrepareDynamicResources")
    )
    assert "did you mean policy?" in message
    assert {name for n in dra_nodes.values() for name in n.tenants()} == set()


GRANT = """
import asyncio, sys
from pathlib import Path
from penstock.node.rpc import AgentClient
from penstock.kube.kubelet.allocation import Allocation, Tenants
from penstock.kube.objects.placement import Share
agent = AgentClient.local(Path(sys.argv[1]) / "agent.sock")
uuid = agent.node().devices[0].uuid
one = Allocation(sys.argv[2], "nowhere", "forgotten", "", {uuid: Share(1 << 30, 10)},
                 labels={"penstock.io/claim": "forgotten"})
asyncio.run(Tenants(agent).grant(one))
print(one.tenant)
"""
UNPREPARE = """
import sys, grpc
from penstock_api.kubelet import dra_v1_pb2 as pb, dra_v1_pb2_grpc
with grpc.insecure_channel("unix:/var/lib/kubelet/plugins/penstock.io/dra.sock") as channel:
    stub = dra_v1_pb2_grpc.DRAPluginStub(channel)
    claims = [pb.Claim(namespace="nowhere", uid=uid, name="forgotten") for uid in sys.argv[1:]]
    asked = pb.NodeUnprepareResourcesRequest(claims=claims)
    answer = stub.NodeUnprepareResources(asked, timeout=30)
    print(sorted((uid, one.error) for uid, one in answer.claims.items()))
    asked = pb.NodePrepareResourcesRequest(claims=claims[:1])
    answer = stub.NodePrepareResources(asked, timeout=6.4)  # a second is kept, the rest rounded
    print(answer.claims[sys.argv[1]].error)
"""


def test_leftovers_go_only_when_no_container_has_them_and_unprepare_needs_no_api_server(
    cluster, dra_nodes
):
    node = dra_nodes["node-2"]

    def granted(owner: str) -> str:
        done = node.call(sys.executable, "-c", GRANT, STATE, owner)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def removed() -> list[str]:
        return [event["tenant"] for event in node.beside.events("removed a leftover")]

    # Whoever uses it is there before it is: it is given four seconds.
    used = tenant_name("forgotten", "used")
    folder, at = f"{STATE}/tenants/{used}", "/run/penstock-tenant"
    inside = (
        f"mkdir -p {at}; until test -e {folder}/usage && mount --bind {folder}/container {at};"
        f"do sleep 0.1; done; mount --bind {folder}/usage {at}/usage && echo held && exec sleep 600"
    )
    holder = node.service("holder")
    holder.command = ("unshare", "--mount", "sh", "-c", inside)
    holder.start()
    try:
        assert granted("used") == used
        until("it is used", lambda: "held" in holder.said())
        for owner in ("idle", "third"):  # a whole time later the used one is still there
            idle = granted(owner)
            until(f"the {owner} one is removed", lambda t=idle: t in removed())
            assert node.tenants().keys() == {used}
        assert used not in removed()
    finally:
        holder.kill()
    until("nobody uses it any more", lambda: node.tenants() == {})

    server = cluster.process("kube-apiserver")
    granted("prepared")
    server.send_signal(signal.SIGSTOP)
    try:
        done = node.call(sys.executable, "-c", UNPREPARE, "prepared", "never-seen")
    finally:
        server.send_signal(signal.SIGCONT)
    assert done.returncode == 0, done.stderr
    ended, refused = done.stdout.splitlines()
    assert ended == "[('never-seen', ''), ('prepared', '')]"
    assert "within 5 s" in refused, "in the time that its caller had left"
    assert node.tenants() == {}


def pools(claims: Claims) -> dict[str, tuple[int, int]]:
    """Of each node: generation, and how many devices."""
    found = claims.api.list_resource_slice().items
    return {one.spec.node_name: (one.spec.pool.generation, len(one.spec.devices)) for one in found}


def test_slices_are_put_right(cluster, claims, dra_nodes):
    before = pools(claims)
    assert {devices for _, devices in before.values()} == {2}
    claims.api.delete_resource_slice("node-1-penstock.io-0")
    until("it is there again", lambda: pools(claims).get("node-1", (0, 0))[1] == 2)
    wrong = claims.api.read_resource_slice("node-2-penstock.io-0")
    wrong.spec.devices = wrong.spec.devices[:1]
    claims.api.replace_resource_slice(wrong.metadata.name, wrong)
    until("it is right again", lambda: pools(claims)["node-2"] == (before["node-2"][0] + 1, 2))
    cluster.core.patch_node("node-1", {"metadata": {"annotations": {"penstock.io/devices": "x"}}})
    until(
        "the annotation is right again",
        lambda: cluster.core.read_node("node-1").metadata.annotations["penstock.io/devices"] != "x",
    )


@pytest.fixture(scope="module")
def without_the_second(dra_nodes):
    """Half a minute after its driver a kubelet takes its slices away: others test meanwhile."""
    node = dra_nodes["node-2"]
    node.beside.end()
    assert node.files("/var/lib/kubelet/plugins/penstock.io") == ["lock"]
    assert "penstock.io-reg.sock" not in node.files("/var/lib/kubelet/plugins_registry")
    return node


def test_who_goes_past_the_shim_is_ended_and_its_pod_s_events_say_so(
    pods, claims, dra_nodes, without_the_second
):
    config = {"onExceed": {"measured": "terminate", "grace": "1s"}}
    honest = claims.make("honest", **share(2048, 100))
    look(pods, "honest", honest, "stay", node="node-1")
    look(
        pods, "past", claims.make("past", config=config, **share(2048, 100)), "stay", "past",
        node="node-1",
    )  # fmt: skip
    pods.until_phase("past", "Failed")
    assert '{"past": 0}' in pods.log("past"), "it had the memory for a while"
    said = until(
        "an event says that it was ended",
        lambda: (found := events(pods, "past")).get("VgpuTerminated") and found,
    )
    assert "python3" in said["VgpuTerminated"]
    assert "VgpuMemoryDenied" in said
    assert pods.read("honest").status.phase == "Running"
    assert "VgpuTerminated" not in events(pods, "honest")

    # Told again from the beginning, the agent's events are the same Events, and counted as before.
    def counted() -> dict[str, int]:
        found = pods.core.list_namespaced_event(pods.namespace).items
        return {event.metadata.name: event.count for event in found if "Vgpu" in event.reason}

    before = counted()
    dra_nodes["node-1"].beside.restart(signal.SIGKILL)
    dra_nodes["node-1"].until_ready()
    pods.core.delete_namespaced_pod("honest", pods.namespace)
    until("the tenants are gone", lambda: dra_nodes["node-1"].tenants() == {})
    assert counted() == before


XID = """
import sys
from pathlib import Path
from penstock_shim.simulator import Machine
(file,) = Path(sys.argv[1]).glob("h200*")
machine, device = Machine(file), int(sys.argv[3])
machine.report_xid(79, device=device) if sys.argv[2] == "break" else machine.lift(device)
"""


def test_a_device_with_an_xid_error_gets_nothing_new_until_it_was_put_right(
    cluster, pods, claims, dra_nodes, without_the_second
):
    node = dra_nodes["node-1"]

    def slice_devices() -> list:
        found = claims.api.list_resource_slice().items
        return [d for one in found if one.spec.node_name == "node-1" for d in one.spec.devices]

    def announced() -> list[bool]:
        text = cluster.core.read_node("node-1").metadata.annotations["penstock.io/devices"]
        return [one.healthy for one in read_devices(text)]

    holder = claims.make("holder", **share(1024, 100))
    look(pods, "holder", holder, "stay", node="node-1")
    until("it runs", lambda: seen(pods, "holder"))
    (result,) = claims.results("holder")
    at = [device.name for device in slice_devices()].index(result.device)

    def fault(act: str) -> None:
        done = node.call(sys.executable, "-c", XID, f"{STATE}/machines", act, str(at))
        assert done.returncode == 0, done.stderr

    fault("break")
    until(
        "the device is tainted",
        lambda: [bool(device.taints) for device in slice_devices()].count(True) == 1,
    )
    until("the annotation says so", lambda: announced().count(False) == 1)
    until("its Pod is told", lambda: "VgpuDeviceUnhealthy" in events(pods, "holder"))

    def health() -> set[str]:
        statuses = pods.read("holder").status.container_statuses[0]
        found = statuses.allocated_resources_status or []
        return {one.health for resource in found for one in resource.resources or []}

    until("the kubelet knows", lambda: health() == {"Unhealthy"})
    look(pods, "later", claims.make("later", **share(1024, 100)), "stay", node="node-1")
    until("the other device is given out", lambda: seen(pods, "later"))
    (other,) = claims.results("later")
    assert other.device != result.device
    assert pods.read("holder").status.phase == "Running", "what has a share of it keeps it"
    fault("lift")
    until("it is given out again", lambda: not any(device.taints for device in slice_devices()))
    until("the annotation says so", lambda: announced() == [True, True])
    until("the kubelet knows", lambda: health() == {"Healthy"})


def test_a_kubelet_that_is_away_while_pods_are_force_deleted_unprepares_later(
    cluster, pods, claims, dra_nodes, without_the_second
):
    node = dra_nodes["node-1"]
    look(pods, "away", claims.make("away", **share(1024, 100)), "stay", node="node-1")
    until("it runs", lambda: seen(pods, "away"))
    until("nobody else has a share", lambda: len(node.tenants()) == 1)
    kubelet = cluster.process("node-1-kubelet")
    kubelet.send_signal(signal.SIGSTOP)
    try:
        pods.core.delete_namespaced_pod("away", pods.namespace, grace_period_seconds=0)
        claims.api.delete_namespaced_resource_claim("away", pods.namespace)
        looked = len(node.beside.events("not looked for leftovers"))
        until(
            "leftovers are looked for, and the kubelet does not answer",
            lambda: len(node.beside.events("not looked for leftovers")) > looked,
        )
        assert len(node.tenants()) == 1, "its container runs"
    finally:
        kubelet.send_signal(signal.SIGCONT)
    until("the kubelet has ended it", lambda: node.tenants() == {})


def test_slices_go_with_their_driver_and_come_with_it(claims, without_the_second):
    until("the kubelet takes its slices away", lambda: "node-2" not in pools(claims), within_s=90)
    without_the_second.beside.start()
    without_the_second.until_ready()
    assert pools(claims)["node-2"][1] == 2
