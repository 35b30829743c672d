"""Extended resources: a Binding says which device, the plugin makes it so."""

from __future__ import annotations

import signal
from collections import Counter
from typing import Any

import pytest
from tests.kube.support.nodes import CDI
from tests.kube.support.placing import Placing
from tests.kube.support.plugin_pods import (
    LOOK,
    MIB,
    check,
    container,
    devices,
    events,
    nothing_left,
    place,
    pod,
    running,
    taken_up,
    until_said,
)
from tests.kube.support.pods import INSIDE
from tests.kube.support.waiting import until

from penstock.kube.kubelet.allocation import tenant_name
from penstock.kube.kubelet.container_start import owner_of
from penstock.kube.objects.names import PLACED
from penstock.kube.objects.placement import read_placement
from penstock.model.share import Share

pytestmark = pytest.mark.kube


def test_fifty_pods_at_once_each_get_their_own_quota_and_leave_nothing_behind(
    cluster, pods, plugin_nodes, tmp_path
):
    """The scheduler places the Pods while its extender, an agent and the plugins are killed."""
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


ONCE = 'python3 "$0"; test -e /shared/$1 && exec sleep $2; touch /shared/$1; exit 1'


SHARED = {"volumes": [
    {"name": "inside", "hostPath": {"path": str(INSIDE)}}, {"name": "shared", "emptyDir": {}},
]}  # fmt: skip


def twice(name: str, sleep_s: int = 0, **more: Any) -> dict[str, Any]:
    """A container that fails at its first start, and at its second says what it sees and sleeps."""
    made = container(name, "sh", "-c", ONCE, LOOK[1], name, str(sleep_s), **more)
    made["volumeMounts"].append({"name": "shared", "mountPath": "/shared"})
    return made


def test_init_containers_sidecars_and_restarted_containers_each_have_their_own_quota(
    cluster, pods, plugin_nodes, tmp_path
):
    """A container has nearly the whole device, and then the next one that uses the same slot."""
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


def test_a_pod_whose_device_is_not_available_says_why_and_starts_once_it_is(
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
        "misnamed": "the Pod's placement does not include this container",
        "later": "not enough",
    }.items():
        until(f"{name} says why", lambda n=name, w=why: w in events(pods, n))
        assert pods.read(name).status.phase == "Pending"
    pods.core.delete_namespaced_pod("large", pods.namespace)
    check(until_said(pods, "later"), tmp_path, share)
    pods.core.delete_collection_namespaced_pod(pods.namespace)
    nothing_left({node.name: node})


def test_pods_that_the_second_scheduler_places_get_the_shares_of_their_limits(
    cluster, pods, plugin_nodes, tmp_path
):
    """The Pods ask for shares by limits; the test neither places nor binds them."""
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
