"""Growth of a running Pod's share: what is in force is never more than the ledger counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.kube.support.ledger_objects import node

from penstock.kube.extender.growth import step_of
from penstock.kube.extender.ledger import Ledger, read_node, read_pod
from penstock.kube.kubelet.placement_sync import due
from penstock.kube.objects.names import HELD, PLACED, RESIZE
from penstock.kube.objects.placement import at_most, read_placement, write_placement
from penstock.kube.objects.resize_annotation import read_resize, resized
from penstock.model import PenstockError
from penstock.model.share import Share
from penstock.node.admission.scheduled_cap import accounted_label
from penstock.scheduling.placement.device_state import Device, Node
from penstock.scheduling.placement.pod_request import totals

if TYPE_CHECKING:
    from penstock.kube.extender.growth import Step
    from penstock.kube.objects.api_client import Object
from tests.kube.support.resizing import GIB, UUID, placed, resize

NAMES = ("a", "b", "c")


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
        """Writes annotations over the version `over` (None: over any).

        Returns whether they were written.
        """
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
    """An extender and a node of one device, each of which sees changes late and may be killed."""

    def __init__(self) -> None:
        self.server = Server()
        self.in_force: dict[str, Share] = {}  # by uid: what a tenant has, and is accounted for
        self.unseen: dict[str, list[Object | None]] = {}  # what the extender has yet to see
        self.node_seen: dict[str, Object] = {}
        self.start_extender()

    def start_extender(self) -> None:
        """Starts an extender, which lists all Pods."""
        self.ledger = Ledger()
        self.ledger.node_changed(("", "n"), None, read_node(node("n")))
        self.seen: dict[str, Any] = {}
        self.writes: dict[str, tuple[str, Step]] = {}  # over which version
        self.unseen.clear()
        for uid, one in self.server.pods.items():
            self.see(uid, one)

    def see(self, uid: str, one: Object | None) -> None:
        """Gives a Pod to the extender as its cache does: the ledger hears only of differences."""
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
        """Binds another Pod if the ledger has room for it."""
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
        """Ends a Pod: first its containers, then its object."""
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
        """The extender's write reaches the API server, perhaps for the second time.

        Its answer is lost.
        """
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
        """The node starts the container or resizes its tenant.

        It may be killed before it writes so.
        """
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
        """Asserts that shares in force are within the objects', and those within the ledger."""
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
        """Lets the extender and the node work without further kills."""
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
def test_through_any_kills_every_share_in_force_is_counted_and_none_stays_counted_after_its_end(
    steps,
):
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


def test_a_refused_growth_names_the_device_its_free_amount_and_the_requested_one():
    ledger = Ledger()
    ledger.node_changed(("", "n"), None, read_node(node("n")))
    server = Server()
    for uid, gib in (("a", 20), ("b", 54)):
        server.make(uid, gib, 300)
        ledger.pod_changed(("ns", uid), None, read_pod(server.pods[uid]))
    for asked, why in (
        (resize(30), f"device {UUID} has 6Gi free, 10Gi more were requested"),
        (resize(21, 800), f"device {UUID} has 40 % of its time free, 50 % of its time more"),
        (resize(40, 900), "6Gi free, 20Gi more were requested and has 40 % of its time free"),
        (resize(30, container="other"), "the Pod has vGPUs in main"),
        ("{", "cannot be read"),
    ):
        server.change("a", None, **{RESIZE: asked})
        pod = read_pod(server.pods["a"])
        with pytest.raises(PenstockError, match=why):
            step_of(pod, ledger.nodes["n"])
    unhealthy = Node([Device(UUID, "H", 80 * GIB, healthy=False)])
    server.change("a", None, **{RESIZE: resize(21)})
    with pytest.raises(PenstockError, match="has nothing free"):
        step_of(read_pod(server.pods["a"]), unhealthy)
    server.change("a", None, **{RESIZE: resize(19)})  # a smaller share is had anywhere
    step = step_of(read_pod(server.pods["a"]), unhealthy)
    assert step
    assert (step.more, step.held["main"][UUID]) == ({}, Share(20 * GIB, 300))


def test_the_most_of_two_placements_covers_both():
    one = {"main": {"x": Share(1, 5)}, "init": {"x": Share(9, 9)}}
    other = {"main": {"x": Share(3, 2)}}
    assert at_most(one, other) == {"main": {"x": Share(3, 5)}, "init": {"x": Share(9, 9)}}
    roles = [("init", "init"), ("main", "main")]
    assert totals(at_most(one, other), roles) == {"x": Share(9, 9)}
