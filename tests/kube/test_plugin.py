"""Extended resources on real nodes: a Binding says which device, the plugin makes it so."""

from __future__ import annotations

import base64
import json
import secrets
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiException
from tests.kube.cluster import images
from tests.kube.nodes import CDI, STATE, all_nodes
from tests.kube.placing import Placing
from tests.kube.waiting import until

from penstock.kube.kubelet.allocation import tenant_name
from penstock.kube.kubelet.container_start import owner_of
from penstock.kube.kubelet.reconciler import UNWANTED_S
from penstock.kube.objects.names import DEVICES, HELD, PLACED, RESIZE, WAY
from penstock.kube.objects.node_devices import read_devices
from penstock.kube.objects.placement import Share, read_placement, write_placement
from penstock_shim.pages import read_quota

pytestmark = pytest.mark.kube

INSIDE = Path(__file__).parent / "inside"
LOOK = ("python3", str(INSIDE / "look.py"))
MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture(scope="module")
def served(cluster):
    """Agents with two simulated H200 each, served by the device plugin."""
    nodes = all_nodes(cluster, way="plugin")
    try:
        for node in nodes.values():
            node.start()
        yield nodes
    finally:
        for node in nodes.values():
            node.stop()


@pytest.fixture
def plugin_nodes(cluster, served):
    """The same, ready: kubelets refuse Pods for good while no plugin is there."""
    for node in served.values():
        node.until_ready()
        until(f"{node.name} has slots", lambda n=node.name: slots(cluster, n) > 0)
    return served


def slots(cluster, node: str) -> int:
    return int(cluster.core.read_node(node).status.allocatable.get("penstock.io/vgpu", 0))


def devices(cluster, node: str) -> list[str]:
    """UUIDs, as schedulers read them."""
    metadata = cluster.core.read_node(node).metadata
    assert metadata.labels[WAY] == "extender"
    return [one.uuid for one in read_devices(metadata.annotations[DEVICES])]


def container(name: str, *command: str, count: int = 1, **more: Any) -> dict[str, Any]:
    """One with vGPUs that runs a program of ours."""
    limits = {"penstock.io/vgpu": str(count), "penstock.io/memory": "1Gi"} if count else {}
    return {
        "name": name,
        "image": images.DEBIAN,
        "command": list(command),
        "resources": {"limits": limits},
        "volumeMounts": [{"name": "inside", "mountPath": str(INSIDE), "readOnly": True}],
        **more,
    }


def pod(
    name: str, *containers: dict[str, Any], inits: tuple[dict[str, Any], ...] = (), **spec: Any
) -> dict[str, Any]:
    """For a scheduler that the test stands for."""
    return {
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "penstock-scheduler",
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "initContainers": list(inits),
            "containers": list(containers),
            "volumes": [{"name": "inside", "hostPath": {"path": str(INSIDE)}}],
            **spec,
        },
    }


def bind(pods, name: str, node: str, placement: dict[str, dict[str, Share]] | None) -> None:
    """As the extender does: node and devices in one update."""
    annotations = {PLACED: write_placement(placement)} if placement else {}
    body = {
        "metadata": {"name": name, "annotations": annotations},
        "target": {"kind": "Node", "name": node},
    }
    pods.core.create_namespaced_pod_binding(name, pods.namespace, body, _preload_content=False)


def place(pods, body: dict[str, Any], node: str, placement: Any) -> None:
    """Makes the Pod and binds it."""
    pods.core.create_namespaced_pod(pods.namespace, body)
    bind(pods, body["metadata"]["name"], node, placement)


def said(pods, name: str, of: str = "main", *, previous: bool = False) -> dict[str, Any] | None:
    """What the program in a container saw; None: nothing yet.

    Raises:
        ApiException: something else stands in the log, which `until` waits out, or reports.
    """
    answer = pods.core.read_namespaced_pod_log(
        name, pods.namespace, container=of, previous=previous, _request_timeout=10,
        _preload_content=False,
    )  # fmt: skip
    text = answer.data.decode()
    if text and not text.startswith("{"):
        assert "Error" not in text, text
        raise ApiException(reason=f"the log begins with {text[:200]!r}")
    return json.loads(text.splitlines()[0]) if text else None


def until_said(pods, name: str, of: str = "main", **more: Any) -> dict[str, Any]:
    return until(f"{of} of {name} says what it sees", lambda: said(pods, name, of, **more))


def check(answer: dict[str, Any], tmp_path: Path, shares: dict[str, Share]) -> None:
    """What it saw from inside is exactly that: by CUDA, NVML and its quota page."""
    file = tmp_path / f"page-{secrets.token_hex(4)}"
    file.write_bytes(base64.b64decode(answer["page"]))
    limits = {one.uuid: one for one in read_quota(file).limits.devices}
    seen = {one["uuid"]: one for one in answer["devices"]}
    assert seen.keys() == limits.keys() == shares.keys()
    for uuid, share in shares.items():
        assert (seen[uuid]["memory_bytes"], seen[uuid]["beyond"], seen[uuid]["within"]) == (
            share.memory_bytes, 2, 0,
        )  # fmt: skip
        assert limits[uuid].cores_permille == share.cores_permille
        assert limits[uuid].memory_bytes == share.memory_bytes
    assert sorted(answer["nvml_bytes"]) == sorted(one.memory_bytes for one in shares.values())


def events(pods, name: str) -> str:
    """Messages of all events of a Pod."""
    found = pods.core.list_namespaced_event(
        pods.namespace, field_selector=f"involvedObject.name={name}"
    ).items
    return "\n".join(f"{event.reason}: {event.message}" for event in found)


def nothing_left(nodes) -> None:
    """Of tenants, and of devices for containers."""
    for node in nodes.values():
        until(f"{node.name} has no tenant", lambda n=node: n.tenants() == {})
        until(f"{node.name} has no CDI spec", lambda n=node: n.files(CDI) == [])
        until("nor a file of one", lambda n=node: n.files(f"{STATE}/tenants") == [])


def test_fifty_pods_with_fifty_quotas_at_once_get_each_its_own_and_leave_nothing(
    cluster, pods, plugin_nodes, tmp_path
):
    """Placed by the scheduler itself, while its extender, an agent and the plugins are killed."""
    first, second = plugin_nodes.values()
    uuids = {name: devices(cluster, name) for name in plugin_nodes}
    wanted = {f"pod-{at}": Share((1024 + 32 * at) * MIB, 20 + at % 40) for at in range(50)}
    placing = Placing(cluster, tmp_path)
    placing.start("--nodes=spread", "--devices=spread")
    try:
        for name, share in wanted.items():
            one = container("main", *LOOK, "stay")
            one["resources"]["limits"] |= {
                "penstock.io/memory": str(share.memory_bytes),
                "penstock.io/cores-permille": str(share.cores_permille),
            }
            pods.core.create_namespaced_pod(pods.namespace, pod(name, one))
        until("some are placed", lambda: taken_up(pods) > 3)
        placing.kill()
        placing.start("--nodes=spread", "--devices=spread")
        until("kubelets have taken up all", lambda: taken_up(pods) == 50, within_s=120)
    finally:
        placing.stop()
    first.beside.restart(signal.SIGKILL)
    until("some run", lambda: len(running(pods)) >= 10, within_s=120)
    first.agent.restart(signal.SIGKILL)
    second.beside.restart(signal.SIGKILL)
    until("fifty Pods run", lambda: len(running(pods)) == 50, within_s=240)
    held: Counter[str] = Counter()
    for one in running(pods):
        placement = read_placement(one.metadata.annotations[PLACED])
        ((uuid, share),) = placement["main"].items()
        assert share == wanted[one.metadata.name]
        assert uuid in uuids[one.spec.node_name]
        held[uuid] += share.cores_permille
        check(until_said(pods, one.metadata.name), tmp_path, placement["main"])
    assert len(held) == 4, "they are spread"
    assert max(held.values()) <= 1000
    for node in plugin_nodes.values():
        node.until_ready()
        own = [one for one in running(pods) if one.spec.node_name == node.name]
        assert len(node.tenants()) == len(own) >= 15
        slots_of_it = [one for one in node.files(CDI) if one.startswith("penstock.io-slot_")]
        assert len(slots_of_it) == len(own)
    assert {one.status.container_statuses[0].restart_count for one in running(pods)} == {0}
    pods.core.delete_collection_namespaced_pod(pods.namespace)
    nothing_left(plugin_nodes)


def taken_up(pods) -> int:
    """How many Pods have been admitted by their kubelets, which give out slots then."""
    found = pods.core.list_namespaced_pod(pods.namespace).items
    return len([one for one in found if one.status.start_time])


def running(pods) -> list[Any]:
    found = pods.core.list_namespaced_pod(pods.namespace).items
    for one in found:
        name = one.metadata.name
        assert one.status.phase != "Failed", (
            f"{one.status.message} {one.status.container_statuses} {events(pods, name)}"
        )
    return [one for one in found if one.status.phase == "Running"]


ONCE = 'python3 "$0"; test -e /shared/$1 && exec sleep $2; touch /shared/$1; exit 1'
SHARED = {"volumes": [
    {"name": "inside", "hostPath": {"path": str(INSIDE)}}, {"name": "shared", "emptyDir": {}},
]}  # fmt: skip


def twice(name: str, sleep_s: int = 0, **more: Any) -> dict[str, Any]:
    """One that fails once, says what it sees, and then sleeps."""
    made = container(name, "sh", "-c", ONCE, LOOK[1], name, str(sleep_s), **more)
    made["volumeMounts"].append({"name": "shared", "mountPath": "/shared"})
    return made


def test_init_containers_sidecars_and_restarts_have_each_container_s_own_quota(
    cluster, pods, plugin_nodes, tmp_path
):
    """Nearly the whole device first for one container, then for the next one with its slot."""
    node = plugin_nodes["node-1"]
    one, other = devices(cluster, node.name)
    small = {one: Share(1024 * MIB, 50)}
    whole = {
        "first": {one: Share(120_000 * MIB, 900)},
        "side": small,
        "second": {one: Share(130_000 * MIB, 800), other: Share(2048 * MIB, 10)},
        "main": {one: Share(140_000 * MIB, 950)},
        "beside": {other: Share(130_000 * MIB, 600)},
    }
    body = pod(
        "turns",
        twice("main", 1000),
        container("beside", *LOOK, "stay"),
        container("without", "sleep", "1000", count=0),
        inits=(
            twice("first"),
            container("side", *LOOK, "stay", restartPolicy="Always"),
            twice("second", count=2),
        ),
        restartPolicy="Always",
        **SHARED,
    )
    place(pods, body, node.name, whole)
    until(
        "all has started",
        lambda: [x.ready for x in pods.read("turns").status.container_statuses or ()] == 3 * [True],
        within_s=150,
    )  # fmt: skip
    for name, shares in whole.items():
        check(until_said(pods, "turns", name), tmp_path, shares)
    check(until_said(pods, "turns", "main", previous=True), tmp_path, whole["main"])
    statuses = pods.read("turns").status
    restarts = {
        x.name: x.restart_count
        for x in (*statuses.init_container_statuses, *statuses.container_statuses)
    }
    assert restarts == {"first": 1, "side": 0, "second": 1, "main": 1, "beside": 0, "without": 0}
    uid = pods.read("turns").metadata.uid
    living = {tenant_name("turns", owner_of(uid, name)) for name in ("side", "main", "beside")}
    assert set(node.tenants()) == living, "those of the init containers have ended"
    pods.core.delete_namespaced_pod("turns", pods.namespace)
    nothing_left({node.name: node})


def test_a_pod_that_cannot_have_its_device_says_why_and_starts_when_it_can(
    cluster, pods, plugin_nodes, tmp_path
):
    node = plugin_nodes["node-2"]
    uuid, other = devices(cluster, node.name)
    large, share = {uuid: Share(100_000 * MIB, 600)}, {uuid: Share(90_000 * MIB, 100)}
    place(pods, pod("large", container("main", *LOOK, "stay")), node.name, {"main": large})
    until_said(pods, "large")
    bodies = {
        "unplaced": ("main", None),
        "elsewhere": ("main", {"main": {"GPU-of-no-node": Share(MIB << 10, 10)}}),
        "misnamed": ("main", {"other": {other: Share(MIB << 10, 10)}}),
        "later": ("main", {"main": share}),
    }
    for name, (of, placement) in bodies.items():
        place(pods, pod(name, container(of, *LOOK, "stay")), node.name, placement)
    for name, why in {
        "unplaced": "the Pod was not placed by penstock-scheduler",
        "elsewhere": "GPU-of-no-node",
        "misnamed": "the Pod's placement does not have this container",
        "later": "not enough",
    }.items():
        until(f"{name} says why", lambda n=name, w=why: w in events(pods, n))
        assert pods.read(name).status.phase == "Pending"
    pods.core.delete_namespaced_pod("large", pods.namespace)
    check(until_said(pods, "later"), tmp_path, share)
    pods.core.delete_collection_namespaced_pod(pods.namespace)
    nothing_left({node.name: node})


def granted(node, name: str) -> list[dict[str, Any]]:
    """What the plugin says it gave to a Pod's containers, at each start of one."""
    return [one for one in node.beside.events("granted") if one["pod"] == name]


def test_containers_restart_and_pods_go_while_api_server_kubelet_plugin_and_agent_are_away(
    cluster, pods, plugin_nodes, tmp_path
):
    node = plugin_nodes["node-1"]
    one, other = devices(cluster, node.name)
    shares = {
        "restarts": {one: Share(2048 * MIB, 100)},
        "runs-on": {other: Share(3072 * MIB, 110)},
        "forced": {one: Share(4096 * MIB, 120)},
        "finishes": {other: Share(5120 * MIB, 130)},
    }
    again = ("sh", "-c", f"python3 {LOOK[1]}; sleep 4242")
    place(pods, pod("restarts", container("main", *again), restartPolicy="Always"), node.name, {
        "main": shares["restarts"]
    })  # fmt: skip
    for name in ("runs-on", "forced"):
        place(pods, pod(name, container("main", *LOOK, "stay")), node.name, {"main": shares[name]})
    place(pods, pod("finishes", container("main", *LOOK)), node.name, {"main": shares["finishes"]})
    for name in ("restarts", "runs-on", "forced"):
        check(until_said(pods, name), tmp_path, shares[name])
    pods.until_phase("finishes", "Succeeded")
    check(until_said(pods, "finishes"), tmp_path, shares["finishes"])
    until("what has finished is released", lambda: len(node.tenants()) == 3)

    # No API server, and a plugin that has been started anew: it knows no Pods.
    api_server = cluster.process("kube-apiserver")
    api_server.suspend()
    try:
        times = len(node.beside.events("registered"))
        node.beside.restart(signal.SIGKILL)
        # Sooner, and the kubelet would ask nobody, and again only after ten seconds or more.
        until("the plugin is there again", lambda: len(node.beside.events("registered")) > times)
        begun = len(granted(node, "restarts"))
        node.call("pkill", "-f", "^sleep 4242")
        until("the container starts again", lambda: len(granted(node, "restarts")) > begun)
        assert len(node.tenants()) == 3
    finally:
        api_server.resume()
    until(
        "it has restarted", lambda: pods.read("restarts").status.container_statuses[0].restart_count
    )
    check(until_said(pods, "restarts"), tmp_path, shares["restarts"])
    check(until_said(pods, "restarts", previous=True), tmp_path, shares["restarts"])

    # Deleted by force, while no kubelet is there to end it: its share is not free yet.
    kubelet = cluster.process(f"{node.name}-kubelet")
    kubelet.suspend()
    pods.core.delete_namespaced_pod("forced", pods.namespace, grace_period_seconds=0)
    node.agent.restart(signal.SIGKILL)
    node.until_answers()
    time.sleep(3 * UNWANTED_S)
    assert len(node.tenants()) == 3
    kubelet.kill()
    until("it is released", lambda: len(node.tenants()) == 2, within_s=120)
    node.until_ready()
    until("slots are told again", lambda: slots(cluster, node.name) > 0)
    place(pods, pod("new", container("main", *LOOK, "stay")), node.name, {"main": shares["forced"]})
    check(until_said(pods, "new"), tmp_path, shares["forced"])
    assert pods.read("runs-on").status.container_statuses[0].restart_count == 0
    pods.core.delete_collection_namespaced_pod(pods.namespace)
    nothing_left({node.name: node})


def test_the_second_scheduler_places_what_the_webhook_s_users_ask_for_and_nodes_make_it_so(
    cluster, pods, plugin_nodes, tmp_path
):
    """No hand of the test's in it: asked for by limits, seen from inside."""
    placing = Placing(cluster, tmp_path)
    placing.start()
    try:
        wanted = {f"asks-{number}": (1024 + 512 * number, 100 + number) for number in range(8)}
        for name, (memory_mib, cores_permille) in wanted.items():
            one = container("main", *LOOK, "stay")
            one["resources"]["limits"] = {
                "penstock.io/vgpu": "1",
                "penstock.io/memory": f"{memory_mib}Mi",
                "penstock.io/cores-permille": str(cores_permille),
            }
            pods.core.create_namespaced_pod(pods.namespace, pod(name, one))
        pair = container("main", *LOOK, "stay", count=2)
        pair["resources"]["limits"]["penstock.io/cores-permille"] = "50"
        pods.core.create_namespaced_pod(pods.namespace, pod("pair", pair))
        for name, (memory_mib, cores_permille) in wanted.items():
            answer = until_said(pods, name)
            (seen,) = answer["devices"]
            check(answer, tmp_path, {seen["uuid"]: Share(memory_mib * MIB, cores_permille)})
            where = pods.read(name)
            assert seen["uuid"] in devices(cluster, where.spec.node_name)
            assert seen["uuid"] in where.metadata.annotations[PLACED]
        both = until_said(pods, "pair")
        check(both, tmp_path, {one["uuid"]: Share(1 << 30, 50) for one in both["devices"]})
        assert len(both["devices"]) == 2
    finally:
        placing.stop()
    pods.core.delete_collection_namespaced_pod(pods.namespace)
    nothing_left(plugin_nodes)


def test_a_running_pod_s_share_grows_and_shrinks_while_who_does_it_is_killed(
    cluster, pods, plugin_nodes, tmp_path
):
    """Beside another on the same device, which has what the first gives back, and not before."""
    node = next(iter(plugin_nodes.values()))
    placing = Placing(cluster, tmp_path)
    placing.start()
    try:
        for name, memory, cores in (("grows", "20Gi", 300), ("beside", "100Gi", 400)):
            one = container("main", *LOOK, "watch")
            one["resources"]["limits"] |= {
                "penstock.io/memory": memory, "penstock.io/cores-permille": str(cores),
            }  # fmt: skip
            body = pod(name, one, nodeSelector={"kubernetes.io/hostname": node.name})
            pods.core.create_namespaced_pod(pods.namespace, body)
            until_said(pods, name)
        (uuid,) = placement_of(pods, "grows")
        assert placement_of(pods, "beside") == {uuid: Share(100 * GIB, 400)}
        until_in_force(pods, "grows", tmp_path, Share(20 * GIB, 300))

        ask(pods, "grows", "30Gi", 500)
        until_in_force(pods, "grows", tmp_path, Share(30 * GIB, 500))
        until("it is told", lambda: "VgpuGrown: main: 30Gi and 50 %" in events(pods, "grows"))
        until("by the node too", lambda: "VgpuResized: " in events(pods, "grows"))

        placing.kill()
        ask(pods, "grows", "60Gi", 500)
        placing.start_extender()
        until("it is refused", lambda: "30Gi more were asked" in events(pods, "grows"))
        assert f"VgpuResizeRefused: device {uuid} has 10.4" in events(pods, "grows")
        assert placement_of(pods, "grows") == {uuid: Share(30 * GIB, 500)}

        # Nobody follows: what is given back is still in use, and nobody gets it.
        node.beside.kill()
        ask(pods, "grows", "5Gi", 100)
        ask(pods, "beside", "120Gi", 400)
        until("it shrinks", lambda: placement_of(pods, "grows") == {uuid: Share(5 * GIB, 100)})
        until("the other waits", lambda: "20Gi more were asked" in events(pods, "beside"))
        assert placement_of(pods, "grows", HELD) == {uuid: Share(30 * GIB, 500)}
        placing.kill()
        placing.start_extender()
        time.sleep(2)  # it looks every second
        assert placement_of(pods, "beside") == {uuid: Share(100 * GIB, 400)}
        node.beside.start()
        until_in_force(pods, "grows", tmp_path, Share(5 * GIB, 100))
        until_in_force(pods, "beside", tmp_path, Share(120 * GIB, 400))
        assert placement_of(pods, "grows", HELD) == {}
        until("it is told", lambda: "VgpuShrunk" in events(pods, "grows"))
        moves_below_on_its_node(pods, node, tmp_path)
        is_had_by_who_waits(pods, node)
        for name in ("grows", "beside"):
            assert pods.read(name).status.container_statuses[0].restart_count == 0
    finally:
        placing.stop()
    pods.core.delete_collection_namespaced_pod(pods.namespace)
    nothing_left(plugin_nodes)


def moves_below_on_its_node(pods, node, tmp_path: Path) -> None:
    """Below what is accounted for, and stays so; above it does not."""
    (name,) = [one for one in node.tenants() if one.startswith("grows")]
    assert "accounted 5Gi" in node.run("quota", "set", name, "--memory=6Gi").stderr
    assert node.run("quota", "set", name, "--memory=4Gi").returncode == 0
    node.beside.restart(signal.SIGKILL)
    node.until_ready()
    until_in_force(pods, "grows", tmp_path, Share(4 * GIB, 100))


def is_had_by_who_waits(pods, node) -> None:
    """What a running Pod gives back, also by those that wait to be placed."""
    for name, memory in (("fills", "120Gi"), ("waits", "30Gi")):
        one = container("main", *LOOK, "watch")
        one["resources"]["limits"]["penstock.io/memory"] = memory
        one["resources"]["limits"]["penstock.io/cores-permille"] = "100"
        body = pod(name, one, nodeSelector={"kubernetes.io/hostname": node.name})
        pods.core.create_namespaced_pod(pods.namespace, body)
        until(
            "it is looked at",
            lambda n=name: "Scheduled" in events(pods, n) or "FailedScheduling" in events(pods, n),
        )
    assert not pods.read("waits").spec.node_name
    ask(pods, "beside", "100Gi", 400)
    until_said(pods, "waits")


def ask(pods, name: str, memory: str, cores_permille: int) -> None:
    """As a Pod's owner does."""
    wish = {"main": {"memory": memory, "cores-permille": cores_permille}}
    body = {"metadata": {"annotations": {RESIZE: json.dumps(wish)}}}
    pods.core.patch_namespaced_pod(name, pods.namespace, body)


def placement_of(pods, name: str, annotation: str = PLACED) -> dict[str, Share]:
    text = (pods.read(name).metadata.annotations or {}).get(annotation)
    return dict(read_placement(text)["main"]) if text else {}


def until_in_force(pods, name: str, tmp_path: Path, share: Share) -> None:
    """The program in it has been told so, by CUDA and its quota page, without a restart."""

    def now() -> bool:
        last = json.loads(pods.log(name).splitlines()[-1])
        file = tmp_path / f"page-{secrets.token_hex(4)}"
        file.write_bytes(base64.b64decode(last["page"]))
        (limit,) = read_quota(file).limits.devices
        found = last.get("memory_bytes"), limit.memory_bytes, limit.cores_permille
        return found == (share.memory_bytes, share.memory_bytes, share.cores_permille)

    until(f"{name} sees {share}", now)
