"""A running Pod's share that grows and shrinks: never in force beyond what the ledger counts."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.kube.test_ledger import NothingAround, node

from penstock.kube.extender.growth import step_of
from penstock.kube.extender.ledger import Ledger, read_node, read_pod
from penstock.kube.kubelet.placement_sync import due
from penstock.kube.objects.device_amounts import Amounts, of_pod
from penstock.kube.objects.names import HELD, PLACED, RESIZE
from penstock.kube.objects.placement import Share, at_most, read_placement, write_placement
from penstock.kube.objects.resize_annotation import read_resize, resized, told
from penstock.kube.quota.caps import OVER, Counter, _answers, _Asked, read_cap
from penstock.kube.quota.policies import read_policy
from penstock.kube.webhook.admission_review import Reviewer
from penstock.kube.webhook.review_context import PodClaims
from penstock.model import PenstockError
from penstock.node.admission.scheduled_cap import accounted_label
from penstock.scheduling.placement.device_state import Device, Node
from penstock.scheduling.placement.pod_request import totals

if TYPE_CHECKING:
    from penstock.kube.extender.growth import Step
    from penstock.kube.objects.api_client import Object
    from penstock.kube.quota.policies import Policy

GIB = 1 << 30
UUID = "n-0"
NAMES = ("a", "b", "c")


def resize(gib: int | None = None, cores: int | None = None, container: str = "main") -> str:
    wish: dict[str, Any] = {}
    if gib is not None:
        wish["memory"] = f"{gib}Gi"
    if cores is not None:
        wish["cores-permille"] = cores
    return json.dumps({container: wish})


def placed(gib: int, cores: int) -> str:
    return write_placement({"main": {UUID: Share(gib * GIB, cores)}})


class Server:
    """Pods as an API server keeps them: one version of each, changed over the version read."""

    def __init__(self) -> None:
        self.pods: dict[str, Object] = {}
        self.version = 0

    def make(self, uid: str, gib: int, cores: int) -> None:
        self.version += 1
        self.pods[uid] = {
            "metadata": {
                "uid": uid, "name": uid, "namespace": "ns", "resourceVersion": str(self.version),
                "annotations": {PLACED: placed(gib, cores)},
            },
            "spec": {"nodeName": "n", "containers": [{"name": "main"}]},
            "status": {},
        }  # fmt: skip

    def change(self, uid: str, over: str | None, **annotations: str | None) -> bool:
        """Whether it was written: None is over whatever is there."""
        one = self.pods.get(uid)
        if one is None or over not in {None, one["metadata"]["resourceVersion"]}:
            return False
        self.version += 1
        now = {**one["metadata"]["annotations"], **annotations}
        now = {key: value for key, value in now.items() if value is not None}
        metadata = {
            **one["metadata"], "annotations": now, "resourceVersion": str(self.version),
        }  # fmt: skip
        self.pods[uid] = {**one, "metadata": metadata}
        return True


class World:
    """An extender and a node of one device: each sees late and may be killed."""

    def __init__(self) -> None:
        self.server = Server()
        self.in_force: dict[str, Share] = {}  # by uid: what a tenant has, and is accounted for
        self.unseen: dict[str, list[Object | None]] = {}  # what the extender has yet to see
        self.node_seen: dict[str, Object] = {}
        self.start_extender()

    def start_extender(self) -> None:
        """A new one: it lists."""
        self.ledger = Ledger()
        self.ledger.node_changed(("", "n"), None, read_node(node("n")))
        self.seen: dict[str, Any] = {}
        self.writes: dict[str, tuple[str, Step]] = {}  # over which version
        self.unseen.clear()
        for uid, one in self.server.pods.items():
            self.see(uid, one)

    def see(self, uid: str, one: Object | None) -> None:
        """As the extender's cache tells: only what differs, but always kept."""
        new = read_pod(one) if one else None
        old = self.seen.get(uid)
        if old != new:
            self.ledger.pod_changed(("ns", uid), old, new)
        if new is None:
            self.seen.pop(uid, None)
        else:
            self.seen[uid] = new
        if uid in self.writes and (
            new is None or new.running is None or new.running.version != self.writes[uid][0]
        ):
            self.ledger.release_growth(uid)
            del self.writes[uid]

    def tell(self, uid: str) -> None:
        self.unseen.setdefault(uid, []).append(self.server.pods.get(uid))

    def step(self, what: str, uid: str, gib: int, cores: int) -> None:
        getattr(self, what.replace(" ", "_"))(uid, gib, cores)

    def bind(self, uid: str, gib: int, cores: int) -> None:
        """Another Pod, where the ledger has room: chosen and written at once."""
        left = self.ledger.nodes["n"].left(UUID)
        share = Share(gib * GIB, cores)
        if (
            uid in self.server.pods
            or uid in self.seen
            or self.unseen.get(uid)
            or left is None
            or share.memory_bytes > left.memory_bytes
            or share.cores_permille > left.cores_permille
        ):
            return
        self.ledger.assume(uid, ("ns", uid), "n", {UUID: share})
        self.server.make(uid, gib, cores)
        self.tell(uid)

    def ask(self, uid: str, gib: int, cores: int) -> None:
        if self.server.change(uid, None, **{RESIZE: resize(gib, cores)}):
            self.tell(uid)

    def end(self, uid: str, *_: int) -> None:
        """Its containers are gone, and then its object."""
        self.in_force.pop(uid, None)
        if self.server.pods.pop(uid, None):
            self.tell(uid)
            self.node_seen.pop(uid, None)

    def extender_sees(self, uid: str, *_: int) -> None:
        if self.unseen.get(uid):
            self.see(uid, self.unseen[uid].pop(0))

    def extender_decides(self, uid: str, *_: int) -> None:
        pod = self.seen.get(uid)
        if pod is None or pod.running is None or uid in self.writes:
            return
        try:
            step = step_of(pod, self.ledger.nodes["n"])
        except PenstockError:  # there is less free
            return
        if step is not None:
            self.ledger.grow(uid, "n", step.more)
            self.writes[uid] = pod.running.version, step

    def write_arrives(self, uid: str, *_: int) -> None:
        """Perhaps for the second time; its answer is lost."""
        if uid in self.writes:
            over, step = self.writes[uid]
            held = write_placement(step.held) if step.held else None
            if self.server.change(
                uid, over, **{PLACED: write_placement(step.placement), HELD: held}
            ):
                self.tell(uid)

    def extender_killed(self, *_: Any) -> None:
        self.start_extender()

    def node_sees(self, uid: str, *_: int) -> None:
        if uid in self.server.pods:
            self.node_seen[uid] = self.server.pods[uid]

    def node_follows(self, uid: str, *_: int) -> None:
        """Starts the container, or follows: then it may be killed before it says so."""
        if uid not in self.node_seen:
            return
        text = self.node_seen[uid]["metadata"]["annotations"][PLACED]
        share = self.in_force.get(uid)
        if share is None:
            self.in_force[uid] = read_placement(text)["main"][UUID]
            return
        labels = dict([accounted_label(UUID, share.memory_bytes, share.cores_permille)])
        for now in due(labels, text, "main").values():
            # The agent's own admission: room that another tenant still has is not given.
            others = [one for other, one in self.in_force.items() if other != uid]
            taken = (
                sum(one.memory_bytes for one in others),
                sum(one.cores_permille for one in others),
            )
            assert now.memory_bytes + taken[0] <= 80 * GIB, "the agent would have to refuse"
            assert now.cores_permille + taken[1] <= 1000, "the agent would have to refuse"
            self.in_force[uid] = now

    def node_says(self, uid: str, *_: int) -> None:
        one = self.node_seen.get(uid)
        share = self.in_force.get(uid)
        if one is None or HELD not in one["metadata"]["annotations"]:
            return
        text = one["metadata"]["annotations"][PLACED]
        has = read_placement(text)["main"][UUID]
        if share in {None, has} and self.server.change(
            uid, one["metadata"]["resourceVersion"], **{HELD: None}
        ):
            self.tell(uid)

    def extender_works(self, uid: str, *_: int) -> None:
        for what in ("extender_sees", "extender_sees", "extender_decides", "write_arrives"):
            getattr(self, what)(uid)
            self.check()

    def node_works(self, uid: str, *_: int) -> None:
        for what in ("node_sees", "node_follows", "node_says"):
            getattr(self, what)(uid)
            self.check()

    def counted(self) -> Share:
        return self.ledger.nodes["n"].taken(UUID)

    def check(self) -> None:
        """What is in force is never more than the objects say, nor the objects than the device."""
        memory, cores = 0, 0
        for uid, one in self.server.pods.items():
            annotations = one["metadata"]["annotations"]
            most = read_placement(annotations[PLACED])
            if HELD in annotations:
                most = at_most(most, read_placement(annotations[HELD]))
            share = most["main"][UUID]
            memory, cores = memory + share.memory_bytes, cores + share.cores_permille
            force = self.in_force.get(uid, Share(0, 0))
            assert force.memory_bytes <= share.memory_bytes
            assert force.cores_permille <= share.cores_permille
        assert memory <= 80 * GIB
        assert cores <= 1000
        assert self.counted().memory_bytes >= memory
        assert self.counted().cores_permille >= cores

    def settle(self) -> None:
        """Everybody at work, and nobody killed any more."""
        for _ in range(12):
            for uid in NAMES:
                while self.unseen.get(uid):
                    self.extender_sees(uid)
                for what in (
                    "extender_decides", "write_arrives", "extender_sees", "node_sees",
                    "node_follows", "node_says", "extender_sees",
                ):  # fmt: skip
                    getattr(self, what)(uid)
                    self.check()


def shrinks(gib: int, cores: int) -> list[tuple[str, str, int, int]]:
    return [("ask", "a", gib, cores), ("extender works", "a", 0, 0)]


NODE_FOLLOWS = [("node sees", "a", 0, 0), ("node follows", "a", 0, 0)]
WHAT = [
    "bind", "ask", "ask", "end", "extender sees", "extender decides", "write arrives",
    "extender killed", "node sees", "node follows", "node says", "extender works",
    "extender works", "node works",
]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(WHAT), st.sampled_from(NAMES),
            st.sampled_from([5, 10, 20, 30, 55]), st.sampled_from([50, 100, 200, 300, 650]),
        ),
        min_size=50,
        max_size=90,
    )
)  # fmt: skip
# Smaller twice before the node has followed; and smaller, larger and as small again, while the node
# knows the first of them: what only long walks find by chance.
@example([*shrinks(10, 100), *shrinks(5, 50), *NODE_FOLLOWS])
@example([
    *shrinks(10, 100), *NODE_FOLLOWS, *shrinks(20, 200), *shrinks(10, 100),
    ("node says", "a", 0, 0), *NODE_FOLLOWS, ("extender works", "a", 0, 0),
    ("extender killed", "a", 0, 0), *shrinks(20, 200), *NODE_FOLLOWS,
])  # fmt: skip
def test_whoever_is_killed_nothing_is_in_force_that_is_not_counted_and_nothing_stays_counted(steps):
    world = World()
    begin = [("bind", "a", 20, 200), ("node works", "a", 1, 1), ("bind", "b", 20, 200)]
    for what, uid, gib, cores in [*begin, *steps]:
        world.step(what, uid, gib, cores)
        world.check()
    world.settle()
    memory, cores = 0, 0
    for uid, one in world.server.pods.items():
        annotations = one["metadata"]["annotations"]
        assert HELD not in annotations
        share = read_placement(annotations[PLACED])["main"][UUID]
        assert world.in_force[uid] == share
        memory, cores = memory + share.memory_bytes, cores + share.cores_permille
        if annotations.get(RESIZE):  # it has what it asked for, or there is not so much
            wanted = resized(read_placement(annotations[PLACED]), read_resize(annotations[RESIZE]))[
                "main"
            ][UUID]
            left = world.ledger.nodes["n"].left(UUID)
            assert left is not None
            more = (
                wanted.memory_bytes - share.memory_bytes,
                (wanted.cores_permille - share.cores_permille),
            )
            fits = more[0] <= max(0, left.memory_bytes) and more[1] <= max(0, left.cores_permille)
            assert wanted == share or not fits
    assert (world.counted().memory_bytes, world.counted().cores_permille) == (memory, cores)


def test_a_refusal_names_the_device_what_it_has_and_what_was_asked():
    ledger = Ledger()
    ledger.node_changed(("", "n"), None, read_node(node("n")))
    server = Server()
    for uid, gib in (("a", 20), ("b", 54)):
        server.make(uid, gib, 300)
        ledger.pod_changed(("ns", uid), None, read_pod(server.pods[uid]))
    for asked, why in (
        (resize(30), f"device {UUID} has 6Gi free, 10Gi more were asked"),
        (resize(21, 800), f"device {UUID} has 40 % of its time free, 50 % of its time more"),
        (resize(40, 900), "6Gi free, 20Gi more were asked and has 40 % of its time free"),
        (resize(30, container="other"), "vGPUs have main"),
        ("{", "cannot be read"),
    ):
        server.change("a", None, **{RESIZE: asked})
        pod = read_pod(server.pods["a"])
        with pytest.raises(PenstockError, match=why):
            step_of(pod, ledger.nodes["n"])
    unhealthy = Node([Device(UUID, "H", 80 * GIB, healthy=False)])
    server.change("a", None, **{RESIZE: resize(21)})
    with pytest.raises(PenstockError, match="gives nothing more"):
        step_of(read_pod(server.pods["a"]), unhealthy)
    server.change("a", None, **{RESIZE: resize(19)})  # a smaller share is had anywhere
    step = step_of(read_pod(server.pods["a"]), unhealthy)
    assert step
    assert (step.more, step.held["main"][UUID]) == ({}, Share(20 * GIB, 300))


amounts = st.none() | st.integers(-3, 1 << 60) | st.text(max_size=6) | st.sampled_from(["1Gi", "5"])


@given(
    st.text(max_size=30)
    | st.dictionaries(
        st.sampled_from(["main", "side"]),
        st.dictionaries(st.sampled_from(["memory", "cores-permille", "cores"]), amounts),
        max_size=2,
    ).map(json.dumps)
)
def test_whatever_is_asked_for_is_refused_in_words_or_is_a_share(text):
    placement = {"main": {UUID: Share(GIB, 100)}}
    try:
        after = resized(placement, read_resize(text))
    except PenstockError:
        pass
    else:
        assert read_placement(write_placement(after)) == after


class Around(NothingAround):
    """A node with one device of 80 GiB, and a policy."""

    def __init__(self, *policies: Object, by_claim: bool = False) -> None:
        self._policies = list(policies)
        self.by_claim = by_claim

    async def claims_of(self, pod: Object, namespace: str) -> PodClaims:
        return PodClaims(ours={"gpu": {}} if self.by_claim else {})

    def policies(self, namespace: str) -> list[Policy]:
        return [read_policy(one) for one in self._policies]

    def devices_of(self, name: str) -> dict[str, Device]:
        return {UUID: Device(UUID, "H", 80 * GIB, tflops=100.0)}


def review(
    text: str | None, around: Around, *, was: str | None = None, user: str = "me", **more: str
) -> Object:
    """Of a change of a running Pod: 20 GiB and 30 % of its device."""
    limits = {"penstock.io/memory": "20Gi", "penstock.io/cores-permille": "300"}
    if around.by_claim:
        limits = {}
    spec = {"containers": [{"name": "main", "resources": {"limits": limits}}], "nodeName": "n"}
    found = []
    for resize_to, others in ((was, {}), (text, more)):
        annotations = {PLACED: placed(20, 300), **others}
        if resize_to is not None:
            annotations[RESIZE] = resize_to
        annotations = {key: value for key, value in annotations.items() if value}
        metadata = {"name": "p", "annotations": annotations, "labels": {"app": "a"}}
        found.append({"metadata": metadata, "spec": spec})
    request = {
        "uid": "u", "operation": "UPDATE", "namespace": "ns", "oldObject": found[0],
        "object": found[1], "resource": {"resource": "pods"}, "userInfo": {"username": user},
    }  # fmt: skip
    reviewer = Reviewer(around, scheduler_user="scheduler")  # type: ignore[arg-type]
    body = json.dumps({"request": request}).encode()
    return asyncio.run(reviewer.answer(body, may_patch=False))["response"]


POLICY = {
    "metadata": {"name": "small", "namespace": "ns", "uid": "u", "resourceVersion": "1"},
    "spec": {"selector": {"matchLabels": {"app": "a"}}, "limits": {"memory": "40Gi", "cores": 50}},
}


@pytest.mark.parametrize(
    ("text", "policies", "why"),
    [
        (resize(30, 400), (), ""),
        (resize(10, 100), (POLICY,), ""),
        (resize(40, 500), (POLICY,), ""),
        (resize(81), (), "the device has 80Gi"),
        (resize(41), (POLICY,), "QuotaPolicy ns/small allows 40Gi"),
        (resize(None, 501), (POLICY,), "QuotaPolicy ns/small allows 50 %"),
        (resize(None, 1001), (), "at most 1000 permille: a whole device"),
        (resize(30, container="mian"), (), "vGPUs have main"),
        ('{"main": {"memmory": "30Gi"}}', (), "did you mean memory?"),
        ('{"main": {"memory": "40"}}', (), "such as 40Gi"),
        ('{"main": {}}', (), "it says no amounts"),
        ("30Gi", (), "write it like {"),
    ],
)
def test_what_no_running_pod_can_have_is_refused_when_it_is_asked_for(text, policies, why):
    answer = review(text, Around(*policies))
    assert answer["allowed"] == (not why)
    assert why in (answer.get("status") or {}).get("message", "")


def test_a_claim_s_amounts_do_not_change_and_others_annotations_are_left_alone():
    answer = review(resize(30), Around(by_claim=True))
    assert answer["allowed"]
    assert "does not change while it is allocated" in answer["warnings"][0]
    assert review(None, Around(), was=resize(30))["allowed"]
    assert review("{", Around(), was="{")["allowed"]  # as it was: not this change's doing
    assert "no device yet" in review(resize(30), Around(), **{PLACED: ""}, user="scheduler")[
        "status"
    ]["message"]  # fmt: skip
    for name in (PLACED, HELD):
        answer = review(None, Around(), **{name: placed(30, 300)})
        assert f"annotation {name} is not to be changed by me" in answer["status"]["message"]
        assert review(None, Around(), user="scheduler", **{name: placed(30, 300)})["allowed"]


def test_a_cap_counts_what_a_pod_asks_for_has_and_may_still_have():
    limits = {"penstock.io/memory": "20Gi", "penstock.io/cores-permille": "300"}
    one: Object = {
        "metadata": {"uid": "a", "annotations": {PLACED: placed(20, 300)}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    }
    annotations = one["metadata"]["annotations"]
    assert of_pod(one) == Amounts(1, 20 * GIB, 300)
    annotations[RESIZE] = resize(30)
    assert of_pod(one) == Amounts(1, 30 * GIB, 300)
    annotations |= {PLACED: placed(10, 100), HELD: placed(40, 300), RESIZE: resize(15, 400)}
    assert of_pod(one) == Amounts(1, 40 * GIB, 400)
    del annotations[HELD], annotations[RESIZE]
    assert of_pod(one) == Amounts(1, 20 * GIB, 300)  # as quotas of Kubernetes' own count it


def test_a_wish_that_is_asked_again_over_a_newer_version_counts_once():
    """The API server does so when somebody else changed the Pod meanwhile."""
    ten = {"vgpus": 0, "memoryBytes": 10 * GIB, "coresPermille": 0}
    cap = read_cap(
        {
            "metadata": {"namespace": "ns", "name": "default", "resourceVersion": "1"},
            "spec": {"hard": {"memory": "30Gi"}},
            "status": {
                "used": {"vgpus": 1, "memoryBytes": 20 * GIB, "coresPermille": 300},
                "pending": {f"a{OVER}7{OVER}w": ten},
            },
        }
    )
    more = Amounts(0, 10 * GIB, 0)

    def asked(key: str) -> tuple[list[str | None], set[str]]:
        answers, pending = _answers(cap, [_Asked(key, more, dry=False, answer=None)])
        return answers, set(pending)

    again = f"a{OVER}8{OVER}w"
    assert asked(again) == ([None], {again})
    for other in (f"a{OVER}8{OVER}x", f"b{OVER}8{OVER}w"):
        answers, pending = asked(other)
        assert "would be exceeded" in (answers[0] or "")
        assert pending == {f"a{OVER}7{OVER}w"}


def test_growth_waits_in_the_ledger_until_a_newer_version_of_its_pod_is_seen():
    status = {
        "used": {"vgpus": 1, "memoryBytes": 20 * GIB, "coresPermille": 300},
        "pending": {f"a{OVER}7{OVER}w": {"vgpus": 0, "memoryBytes": 10 * GIB, "coresPermille": 0}},
        "observedGeneration": 0,
    }
    cap = read_cap(
        {
            "metadata": {"namespace": "ns", "name": "default", "resourceVersion": "1"},
            "spec": {"hard": {"memory": "30Gi"}},
            "status": status,
        }
    )
    versions = {"claims": "9", "pods": "9"}
    held = {"a": Amounts(1, 20 * GIB, 300)}
    assert Counter().fold(cap, held, versions, {"a": "7"}) is None
    body = Counter().fold(cap, {"a": Amounts(1, 30 * GIB, 300)}, versions, {"a": "8"})
    assert body
    assert body["status"]["pending"] == {}
    assert body["status"]["used"]["memoryBytes"] == 30 * GIB
    counter = Counter()
    counter.ended("a")
    body = counter.fold(cap, {}, versions, {})
    assert body
    assert body["status"]["pending"] == {}


def test_what_a_pod_has_still_holds_and_asks_for_is_told_apart():
    annotations = {PLACED: placed(20, 300)}
    before = "before 20Gi and 30 %"
    has = f"main has 20Gi and 30 % of {UUID}"
    assert told({}) == []
    assert told(annotations) == [has]
    annotations |= {HELD: placed(30, 300), RESIZE: resize(60)}
    assert told(annotations) == [
        has,
        f"still held until its node has followed: main: 30Gi and 30 % of {UUID}, {before}",
        f"asked for and not reserved: main: 60Gi and 30 % of {UUID}, {before}",
    ]
    assert "cannot be read" in told({**annotations, RESIZE: "{"})[0]


def test_the_most_of_two_placements_covers_both():
    one = {"main": {"x": Share(1, 5)}, "init": {"x": Share(9, 9)}}
    other = {"main": {"x": Share(3, 2)}}
    assert at_most(one, other) == {"main": {"x": Share(3, 5)}, "init": {"x": Share(9, 9)}}
    roles = [("init", "init"), ("main", "main")]
    assert totals(at_most(one, other), roles) == {"x": Share(9, 9)}
