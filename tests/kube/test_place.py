"""Placement by the extender: no device is given twice, and each waiting Pod says why.

Nodes here are objects without a kubelet.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import threading
import time

import pytest
from kubernetes import client
from tests.kube.support.placing import GIB, Placing, devices, grants, node, pod
from tests.kube.support.waiting import until

from penstock.kube.objects.api_client import PODS, Api, ApiError, Object
from penstock.kube.objects.names import PLACED, WAY
from penstock.kube.objects.placement import read_placement
from penstock.kube.objects.resource_request import read_request

pytestmark = pytest.mark.kube


@pytest.fixture(scope="module")
def placing(cluster, tmp_path_factory):
    made = Placing(cluster, tmp_path_factory.mktemp("placing"))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def fake_nodes(cluster):
    """Makes nodes that are removed after the test."""
    made = []

    def make(*nodes: Object) -> None:
        for one in nodes:
            made.append(one["metadata"]["name"])
            cluster.core.create_node(one)

    yield make
    for name in made:
        cluster.core.delete_node(name)


def waiting_that_fit(found: list[Object], uuids: list[str]) -> list[str]:
    """The Pods without a node for which one of the devices, of 80 GiB each, has room."""
    held = grants(found)
    room = [(80 * GIB - held[uuid, "memory"], 1000 - held[uuid, "cores"]) for uuid in uuids]
    waiting = []
    for one in found:
        request = read_request(one)
        assert request
        ask = request.asks[0]
        if not one["spec"].get("nodeName") and any(
            memory >= (ask.memory_bytes or 0) and cores >= (ask.cores_permille or 0)
            for memory, cores in room
        ):
            waiting.append(one["metadata"]["name"])
    return waiting


async def create_all(api: Api, bodies: list[Object], namespace: str) -> None:
    limit = asyncio.Semaphore(16)

    async def created(body: Object) -> bool:
        try:
            await api.create(PODS, body, namespace)
        except ApiError as error:  # it may have happened before the answer was lost
            if error.is_passing or error.status == 403:  # just started, it knows no roles yet
                return False
            if error.code != "AlreadyExists":
                raise
        return True

    async def create(body: Object) -> None:
        async with limit:
            while not await created(body):
                await asyncio.sleep(0.3)

    await asyncio.gather(*(create(body) for body in bodies))


def message(pods, name: str) -> str:
    """Why a Pod waits, as its condition says."""
    for condition in pods.read(name).status.conditions or []:
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.message
    return ""


def hold(pods, name: str, where: str, **asked: int | str) -> None:
    """Makes a Pod that is placed on the node `where`."""
    body = pod(name, **asked)
    body["spec"]["nodeSelector"] = {"only": where}
    pods.core.create_namespaced_pod(pods.namespace, body)
    until(f"{name} is placed", lambda: pods.read(name).spec.node_name)


# By node: what a Pod asks for there, and why it waits.
CAUSES = {
    "memory": ({"memory": "40Gi", "cores": 100}, "memory short by 1Gi at best"),
    "cores": ({"memory": "1Gi", "cores": 425}, "cores short by 2.5 percent at best"),
    "both": (
        {"memory": "41Gi", "cores": 500},
        "memory short by 2Gi and cores short by 10 percent at best",
    ),
    "apart": (
        {"memory": "50Gi", "cores": 500},
        "memory and cores are free, but not on the same device",
    ),
    "few": (
        {"vgpu": 3, "memory": "1Gi", "cores": 10},
        "3 devices are asked for, 2 at best are there",
    ),
    "full": ({"vgpu": 2, "memory": "40Gi", "cores": 10}, "memory short by 2Gi at best"),
    "large": (
        {"memory": "81Gi", "cores": 10},
        "more memory is asked for than a device has, 80Gi at best",
    ),
    "model": ({"memory": "1Gi", "cores": 10}, "no device of the model that is asked for"),
    "tflops": (
        {"memory": "1Gi", "tflops": 901},
        "more TFLOPS are asked for than a device has, 900 at best",
    ),
    "sick": ({"memory": "1Gi", "cores": 10}, "no healthy device"),
    "unrated": (
        {"memory": "1Gi", "tflops": 10},
        "the TFLOPS of its devices are not known: ask for cores",
    ),
    "bare": ({"memory": "1Gi", "cores": 10}, "no devices are registered"),
    "claims": ({"memory": "1Gi", "cores": 10}, f"devices are allocated by claims: see label {WAY}"),
    "torn": ({"memory": "1Gi", "cores": 10}, "the node's devices cannot be read"),
}


def make_nodes(fake_nodes) -> None:
    """Makes a node for each cause, named after it; most have two devices of 80Gi."""

    def one(name: str, annotation: str | None, way: str = "extender", **spec):
        made = node(name, annotation, way, **spec)
        made["metadata"]["labels"]["only"] = name
        return made

    usual = [
        "memory", "cores", "both", "apart", "few", "full", "large", "model", "tflops", "cordoned",
    ]  # fmt: skip
    fake_nodes(
        *(
            one(name, devices(name, tflops=900.0), unschedulable=name == "cordoned")
            for name in usual
        ),
        one("sick", devices("sick", healthy=False, reason="XID 79")),
        one("unrated", devices("unrated")),
        one("bare", None),
        one("claims", devices("claims"), way="claims"),
        one("torn", "[{"),
    )


def hold_devices(pods) -> None:
    """Makes Pods that hold shares of the nodes' devices."""
    for at in range(2):  # more than half: each on a device of its own
        hold(pods, f"m{at}", "memory", memory="41Gi", cores=100)
        hold(pods, f"c{at}", "cores", memory="1Gi", cores=600)
        hold(pods, f"b{at}", "both", memory="41Gi", cores=600)
        hold(pods, f"f{at}", "full", memory=f"{41 + at}Gi", cores=100)
    hold(pods, "a0", "apart", memory="60Gi", cores=100)
    hold(pods, "a1", "apart", memory="21Gi", cores=900)


def ask_of_each(pods) -> None:
    """Makes a Pod for each node, which asks for what that node lacks."""
    for name, (asked, _) in CAUSES.items():
        body = pod(f"wants-{name}", **asked)
        body["spec"]["nodeSelector"] = {"only": name}
        if name == "model":
            body["metadata"]["annotations"] = {"penstock.io/model": "NVIDIA B200"}
        pods.core.create_namespaced_pod(pods.namespace, body)
    body = pod("wants-cordoned", memory="1Gi", cores=10)
    body["spec"] |= {"nodeSelector": {"only": "cordoned"}, "tolerations": []}
    pods.core.create_namespaced_pod(pods.namespace, body)


def test_every_cause_of_waiting_is_named_with_its_figure(placing, pods, fake_nodes):
    make_nodes(fake_nodes)
    hold_devices(pods)
    ask_of_each(pods)
    for name, (_, why) in CAUSES.items():
        until(f"{name}: {why}", lambda n=name, w=why: f"1 {w}" in message(pods, f"wants-{n}"))
    until("cordoned", lambda: "1 node(s) were unschedulable" in message(pods, "wants-cordoned"))
    events = pods.core.list_namespaced_event(pods.namespace).items
    told = {
        one.involved_object.name: one.message for one in events if one.reason == "FailedScheduling"
    }
    assert "memory short by 1Gi at best" in told["wants-memory"]
    assert "cores short by 2.5 percent at best" in told["wants-cores"]  # events are formatted
    # Nobody is evicted in vain: eviction frees nothing that the scheduler can count.
    assert "preemption" not in message(pods, "wants-memory").replace(
        "Preemption is not helpful for scheduling", ""
    ).replace("preemption: 0/", "")
    # and what is freed is given: a Pod that is gone, not one that is going
    pods.core.delete_namespaced_pod("m0", pods.namespace, grace_period_seconds=0)
    until("it is placed now", lambda: pods.read("wants-memory").spec.node_name == "memory")


def test_init_containers_share_the_slot_and_sidecars_add_to_it(placing, pods, fake_nodes):
    fake_nodes(node("one", devices("one", 1)))
    body = pod("many", memory="20Gi", cores=300)
    limits = {"penstock.io/memory": "70Gi", "penstock.io/cores-permille": "900"}
    side = {"penstock.io/memory": "10Gi", "penstock.io/cores-permille": "100"}
    body["spec"]["initContainers"] = [
        {"name": "fetch", "image": "x", "resources": {"limits": limits}},
        {"name": "side", "image": "x", "restartPolicy": "Always", "resources": {"limits": side}},
    ]
    pods.core.create_namespaced_pod(pods.namespace, body)
    until("it is placed", lambda: pods.read("many").spec.node_name == "one")
    placement = read_placement(pods.read("many").metadata.annotations[PLACED])
    assert {name: list(shares) for name, shares in placement.items()} == {
        "fetch": ["GPU-one-0"], "main": ["GPU-one-0"], "side": ["GPU-one-0"],
    }  # fmt: skip
    # 70Gi and 90 % are held: the most at any moment, not the sum of all
    pods.core.create_namespaced_pod(pods.namespace, pod("beside", memory="10Gi", cores=100))
    pods.core.create_namespaced_pod(pods.namespace, pod("more", memory="1Gi", cores=1))
    until("the rest is given", lambda: pods.read("beside").spec.node_name == "one")
    until("and no more", lambda: "short by" in message(pods, "more"))


def test_no_device_is_given_twice_though_extender_and_api_server_are_killed_meanwhile(
    placing, cluster, pods, fake_nodes
):
    """Sixteen requests at a time make more Pods than fit; shares are counted from the objects."""
    count, of_each = 20, 4
    fake_nodes(*(node(f"many-{at}", devices(f"many-{at}", of_each)) for at in range(count)))
    of_all = [f"GPU-many-{at}-{device}" for at in range(count) for device in range(of_each)]
    chance = random.Random(6)  # noqa: S311 - sizes, no secrets
    bodies = [
        pod(f"p{at}", memory=f"{chance.randint(5, 40)}Gi", cores=chance.randint(100, 600))
        for at in range(300)
    ]
    killed = []

    def kill() -> None:
        for part in ("extender", "kube-apiserver", "extender"):
            time.sleep(0.7)
            if part == "extender":
                placing.kill()
                placing.start_extender()
            else:
                cluster.process(part).kill()
            killed.append(part)

    async def look(api: Api) -> list[Object]:
        with contextlib.suppress(ApiError):
            return (await api.list(PODS, pods.namespace))[0]
        return []

    async def work() -> list[Object]:
        async with await Api.connect(cluster.layout.kubeconfig) as api:
            await create_all(api, bodies, pods.namespace)
            end_s, still_fits = time.monotonic() + 150, ["all"]
            while time.monotonic() < end_s:
                await asyncio.sleep(0.5)
                found = await look(api)
                if (
                    len(killed) == 3
                    and found
                    and not (still_fits := waiting_that_fit(found, of_all))
                ):
                    return found
            why = {name: message(pods, name) for name in still_fits[:3]}
            raise AssertionError(
                f"{len(still_fits)} wait that fit: {why}; {placing.ask('metrics')}"
            )

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        found = asyncio.run(work())
    finally:
        killer.join()
    held = grants(found)
    assert max(figure for (_, what), figure in held.items() if what == "memory") <= 80 * GIB
    assert max(figure for (_, what), figure in held.items() if what == "cores") <= 1000
    bound = sum(bool(one["spec"].get("nodeName")) for one in found)
    assert bound < len(bodies)  # more were asked for than fit
    assert placing.running()


def test_the_extender_answers_invalid_and_outdated_requests_with_errors(placing, pods):
    for path in ("filter", "prioritize", "bind"):
        assert placing.ask(path, [1]) is None
        assert placing.ask(path, {"Pod": 3, "NodeNames": 7}) is None
    gone = {"PodNamespace": pods.namespace, "PodName": "no", "PodUID": "u", "Node": "node-1"}
    answer = placing.ask("bind", gone)
    assert answer
    assert b"not found" in answer
    assert placing.ask("readyz")
    assert b"penstock_place_decision_seconds_sum" in (placing.ask("metrics") or b"")


def test_a_refused_pod_is_retried_when_the_extender_learns_of_room_after_the_scheduler(
    placing, fake_nodes, cluster, pods
):
    """The scheduler retries a Pod on an event that the extender may see later.

    The test acts as the scheduler.
    """
    fake_nodes(node("full", devices("full", 1)))
    create = pods.core.create_namespaced_pod
    create(pods.namespace, pod("holder", vgpu=1, memory="60Gi", cores=100))
    until("it is placed", lambda: pods.read("holder").spec.node_name)
    placing.kill("kube-scheduler")
    for name, memory in (("small", "30Gi"), ("other", "70Gi"), ("large", "100Gi")):
        create(pods.namespace, pod(name, vgpu=1, memory=memory, cores=100))
    plain = client.ApiClient().sanitize_for_serialization
    for name in ("small", "other", "large"):
        answer = placing.ask("filter", {"Pod": plain(pods.read(name)), "NodeNames": ["full"]})
        assert answer
        assert json.loads(answer)["NodeNames"] == []

    def told(name: str) -> str:
        found = pods.read(name).status.conditions or []
        return next((one.message for one in found if one.reason == "RoomCame"), "")

    pods.core.delete_namespaced_pod("holder", pods.namespace, grace_period_seconds=0)
    until("it is told of one for whom there is room", lambda: told("small") or told("other"))
    assert not (told("small") and told("other")), "there is room for one of them"
    assert not told("large")
    placing.start()
    until("that one is placed", lambda: waits(pods) in (["large", "other"], ["large", "small"]))


def test_a_waiting_pod_is_not_retried_for_each_change_of_one_that_ends(placing, fake_nodes, pods):
    """The status of the ending Pod changes often, and each change used to cause a retry."""
    fake_nodes(node("ending", devices("ending", 1)))
    create = pods.core.create_namespaced_pod
    body = pod("ends", vgpu=1, memory="60Gi", cores=100)
    body["spec"]["terminationGracePeriodSeconds"] = 60  # no kubelet ends it: it stays
    create(pods.namespace, body)
    until("it is placed", lambda: pods.read("ends").spec.node_name)
    pods.core.delete_namespaced_pod("ends", pods.namespace)
    create(pods.namespace, pod("waits", vgpu=1, memory="60Gi", cores=100))
    until("it was tried", lambda: pods.read("waits").status.conditions)

    def asked() -> int:
        text = (placing.ask("metrics") or b"").decode()
        (count,) = re.findall(r'decision_seconds_count\{verb="filter"\} (\d+)', text)
        return int(count)

    before = asked()
    for number in range(40):  # six seconds
        note = {"metadata": {"annotations": {"changed": str(number)}}}
        pods.core.patch_namespaced_pod("ends", pods.namespace, note)
        said = {"status": {"message": str(number)}}
        pods.core.patch_namespaced_pod_status("ends", pods.namespace, said)
        time.sleep(0.15)
    tries = asked() - before
    pods.core.delete_namespaced_pod("ends", pods.namespace, grace_period_seconds=0)
    until("it is placed", lambda: pods.read("waits").spec.node_name, 12)
    assert tries <= 5, f"{tries} in six seconds"


def waits(pods) -> list[str]:
    """Pods without a node."""
    found = pods.core.list_namespaced_pod(pods.namespace).items
    return sorted(one.metadata.name for one in found if not one.spec.node_name)
