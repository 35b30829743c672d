"""Ledger of allocated shares on each node: placed Pods, Bindings in progress and reserved room.

Only this process places Pods of its scheduler, so a late event (a Pod that ended, a new node) can
only make nodes look fuller than they are. The ledger counts each Binding from before it is posted
until a version of the Pod with this Binding is seen, or until the Binding can no longer happen.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from penstock.kube.objects.names import (
    BY_EXTENDER,
    DEVICES,
    HELD,
    PLACED,
    RESIZE,
    RESOURCE_COUNT,
    WAY,
)
from penstock.kube.objects.node_devices import read_devices
from penstock.kube.objects.placement import at_most, read_placement
from penstock.kube.objects.resource_request import roles
from penstock.model import PenstockError
from penstock.scheduling.placement.device_state import Device, Node
from penstock.scheduling.placement.feasibility import survey
from penstock.scheduling.placement.pod_request import totals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock.kube.objects.api_client import Object
    from penstock.kube.objects.cache import Key
    from penstock.kube.objects.placement import Placement
    from penstock.model.share import Share
    from penstock.scheduling.placement.feasibility import Known
    from penstock.scheduling.placement.pod_request import Request, Role

FINISHED = frozenset({"Succeeded", "Failed"})  # phases of a Pod whose containers are gone


@dataclass(frozen=True)
class SeenNode:
    """The fields of a Node object that the ledger needs."""

    devices: tuple[Device, ...] = ()
    problem: str = ""  # why none of its devices can be allocated


@dataclass(frozen=True)
class SeenPod:
    """A Pod that holds shares of a node's devices."""

    uid: str
    node: str
    shares: Mapping[str, Share]  # by device UUID: the largest share that may be in force
    pod: Key = ("", "")
    priority: int = 0
    since_s: float = 0.0  # start time in seconds since 1970 (UTC)
    ends_s: float | None = None  # deadline of its deletion; None if it is not being deleted
    grace_s: float = 0.0  # termination grace period when it is evicted
    runs: bool = False  # disruption budgets cover only running Pods
    labels: Mapping[str, str] = field(default_factory=dict)
    running: Running | None = None  # None if no resize was requested


@dataclass(frozen=True)
class Running:
    """The resize that the owner of a running Pod requested for its shares."""

    asked: str  # the resize annotation; empty if it was removed
    placement: Placement
    held: Placement  # larger shares that may still be in force
    roles: tuple[tuple[str, Role], ...]
    version: str = field(compare=False)  # resourceVersion that the update must match


@dataclass(frozen=True)
class Kept:
    """Room that is reserved on a node for a Pod for which other Pods were evicted."""

    pod: Key
    node: str
    priority: int
    shares: Mapping[str, Share]


def read_node(one: Object) -> SeenNode:
    """Reads a Node's devices, or the reason why none of them can be allocated."""
    metadata = one["metadata"]
    text = (metadata.get("annotations") or {}).get(DEVICES)
    if text is None:
        return SeenNode(problem="no devices are registered")
    way = (metadata.get("labels") or {}).get(WAY)
    if way != BY_EXTENDER:
        return SeenNode(problem=f"devices are allocated by {way or 'nobody'}: see label {WAY}")
    try:
        found = read_devices(text)
    except PenstockError as error:
        return SeenNode(problem=error.what)
    devices = tuple(
        Device(
            device.uuid,
            device.model,
            device.memory_bytes,
            device.cores_permille,
            device.tflops,
            device.healthy,
        )
        for device in found
    )
    return SeenNode(devices, "" if _has_slots(one) else "no device plugin registered")


def _has_slots(node: Object) -> bool:
    """Whether the device plugin is registered with the kubelet, which otherwise rejects Pods.

    The number of slots does not matter, because it exceeds the number of containers that a kubelet
    runs.
    """
    slots = ((node.get("status") or {}).get("allocatable") or {}).get(RESOURCE_COUNT)
    return slots not in {None, "0"}


def read_pod(one: Object) -> SeenPod | None:
    """Reads the shares that a Pod holds, even while it is being deleted; None if it holds none."""
    metadata = one["metadata"]
    annotations = metadata.get("annotations") or {}
    text = annotations.get(PLACED)
    node = one["spec"].get("nodeName")
    if not text or not node or (one.get("status") or {}).get("phase") in FINISHED:
        return None
    asked, over = annotations.get(RESIZE, ""), annotations.get(HELD, "")
    try:
        placement = read_placement(text)
    except PenstockError:  # not written by our scheduler, so the node will reject the Pod
        return None
    held: Placement = {}
    if over:
        with contextlib.suppress(PenstockError):  # Penstock did not write this annotation
            held = read_placement(over)
    order = roles(one)
    running = None
    if asked or held:
        running = Running(asked, placement, held, tuple(order), metadata["resourceVersion"])
    spec, status = one["spec"], one.get("status") or {}
    ends = metadata.get("deletionTimestamp")
    return SeenPod(
        metadata["uid"],
        node,
        totals(at_most(placement, held) if held else placement, order),
        (metadata.get("namespace", ""), metadata.get("name", "")),
        spec.get("priority") or 0,
        _seconds(status.get("startTime") or metadata.get("creationTimestamp")),
        _seconds(ends) if ends else None,
        float(spec.get("terminationGracePeriodSeconds") or 0),
        status.get("phase") == "Running",
        metadata.get("labels") or {},
        running,
    )


def _seconds(stamp: str | None) -> float:
    """Converts a timestamp of the API server into seconds since 1970 (UTC)."""
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp() if stamp else 0.0


class Ledger:
    """Nodes and the shares allocated on them, kept up to date by caches of Nodes and Pods."""

    def __init__(self, report: Callable[..., None] = lambda *_, **__: None) -> None:
        self.nodes: dict[str, Node] = {}
        self._problems: dict[str, str] = {}
        self._assumed: dict[str, tuple[Key, str, Mapping[str, Share]]] = {}  # by uid of the Pod
        self._growing: dict[str, tuple[str, Mapping[str, Share]]] = {}  # by uid of the Pod
        self._kept: dict[str, Kept] = {}  # by uid of the Pod for which it is reserved
        # Pods with reserved room and a Binding in progress, which counts instead of the room.
        self._aside: set[str] = set()
        self._holders: dict[str, dict[str, SeenPod]] = defaultdict(dict)  # by node, then by uid
        self._priorities: Counter[int] = Counter()  # of all Pods that hold shares
        self._report = report
        self._over: set[str] = set()
        self._freed: set[str] = set()
        self.version = 0
        """Increases with every change that may alter a response to the scheduler."""
        self._changed_at: dict[str, int] = {}  # by node: version of its last change, newest last

    def node_changed(self, key: Key, _: SeenNode | None, new: SeenNode | None) -> None:
        """Handles the addition, change or deletion of a Node, whose shares stay counted."""
        name = key[1]
        node = self._node(name)
        problem = new.problem if new else "the node is not known"
        if problem:
            self._problems[name] = problem
        else:
            self._problems.pop(name, None)
        node.set_devices(new.devices if new else ())
        self._note(name)
        self._freed.add(name)
        self._look(name)
        if new is None and node.is_untaken:
            del self.nodes[name]
            self._problems.pop(name, None)
            self._changed_at.pop(name, None)  # from now on the node counts as unknown

    def pod_changed(self, _: Key, old: SeenPod | None, new: SeenPod | None) -> None:
        """Handles the addition, change or deletion of a Pod that holds shares."""
        if old is not None:
            # A growth can only replace the version that was seen last. So a new version either
            # contains the growth or rules it out.
            self.release_growth(old.uid)
        if old is not None and new is None:
            self.release(old.uid)
        if old is not None:
            if new is None or new.node != old.node or new.shares != old.shares:
                self._give_back(old.node, old.shares)
            else:  # other changes of a Pod do not alter what is free
                self._node(old.node).give_back(old.shares)
            self._look(old.node)
            self._holders[old.node].pop(old.uid, None)
            self._priorities[old.priority] -= 1
            if not self._priorities[old.priority]:
                del self._priorities[old.priority]
        if new is not None:
            self._settle(new.uid)  # from now on the Pod's object shows the placement
            self.keep_no_longer(new.uid)
            if old is None or new.node != old.node or new.shares != old.shares:
                self._note(new.node)
            self._node(new.node).take(new.shares)
            self._look(new.node)
            self._holders[new.node][new.uid] = new
            self._priorities[new.priority] += 1

    def assume(self, uid: str, pod: Key, node: str, shares: Mapping[str, Share]) -> None:
        """Counts the shares of a Binding that is about to be posted."""
        self.release(uid)
        if kept := self._kept.get(uid):
            self._change(kept.node, kept.shares, taken=False)
            self._aside.add(uid)
        self._assumed[uid] = pod, node, shares
        self._change(node, shares, taken=True)

    def release(self, uid: str) -> None:
        """Frees the shares of a Binding that definitely did not happen."""
        if found := self._assumed.get(uid):
            self._freed.add(found[1])
        self._settle(uid)

    def _settle(self, uid: str) -> None:
        """Stops counting a Binding, because it did not happen or the Pod's object shows it."""
        if found := self._assumed.pop(uid, None):
            _, node, shares = found
            self._change(node, shares, taken=False)
        if uid in self._aside:  # the Pod waits again
            self._aside.remove(uid)
            self._change(self._kept[uid].node, self._kept[uid].shares, taken=True)

    def keep(self, uid: str, room: Kept) -> None:
        """Reserves room for a Pod; Pods of a higher priority may still use it."""
        self.keep_no_longer(uid)
        self._kept[uid] = room
        self._change(room.node, room.shares, taken=True)

    def keep_no_longer(self, uid: str) -> None:
        """Ends the reservation for a Pod that is placed, gone, or has waited long enough."""
        if found := self._kept.pop(uid, None):
            if uid in self._aside:
                self._aside.remove(uid)
            else:
                self._give_back(found.node, found.shares)
            self._look(found.node)

    @property
    def kept(self) -> Mapping[str, Kept]:
        """The reserved room, by uid of the Pod for which it is reserved."""
        return self._kept

    def open_to(self, uid: str, priority: int) -> list[Kept]:
        """The reserved room that a Pod may use: its own, and that of Pods of lower priorities."""
        return [
            room
            for other, room in self._kept.items()
            if (other == uid or room.priority < priority) and other not in self._aside
        ]

    @contextlib.contextmanager
    def seen_by(self, uid: str, priority: int) -> Iterator[None]:
        """Within the block, reserved room that the Pod may use counts as free."""
        open_to_it = self.open_to(uid, priority)
        for room in open_to_it:
            self._node(room.node).give_back(room.shares)
        try:
            yield
        finally:
            for room in open_to_it:
                self._node(room.node).take(room.shares)

    def holders(self, name: str) -> Iterable[SeenPod]:
        """The Pods that are known to hold shares of a node's devices."""
        return self._holders[name].values() if name in self._holders else ()

    def has(self, uid: str) -> bool:
        """Whether a Pod holds shares, or is being bound."""
        return uid in self._assumed or any(uid in there for there in self._holders.values())

    @property
    def lowest_priority(self) -> int | None:
        """The lowest priority of all Pods that hold shares; None if no Pod holds any."""
        return min(self._priorities, default=None)

    def grow(self, uid: str, node: str, more: Mapping[str, Share]) -> None:
        """Counts the additional shares of a larger placement that is about to be written."""
        self.release_growth(uid)
        self._growing[uid] = node, more
        self._change(node, more, taken=True)

    def release_growth(self, uid: str) -> None:
        """Stops counting a growth, because it was not written or the Pod's object shows it."""
        if found := self._growing.pop(uid, None):
            node, more = found
            self._give_back(node, more)

    def take_freed(self) -> set[str]:
        """The nodes on which more may be free than at the previous call."""
        freed, self._freed = self._freed, set()
        return freed

    def assumed(self) -> dict[str, Key]:
        """The Pods, by uid, whose Bindings have not been seen yet."""
        return {uid: pod for uid, (pod, _, _) in self._assumed.items()}

    def survey(
        self, names: Sequence[str], request: Request, known: Known | None = None
    ) -> tuple[list[str], dict[str, list[str]]]:
        """Finds the nodes where the request fits, and groups the other nodes by what they lack.

        `known` is the cache of `penstock.scheduling.placement.feasibility`.
        """
        problems, nodes = self._problems, self.nodes
        usable = {name: nodes[name] for name in names if name in nodes and name not in problems}
        fits, lacking = survey(usable, request, known)
        if len(usable) < len(names):
            for name in names:
                if name not in usable:
                    why = problems.get(name, "the node is not known yet")
                    lacking.setdefault(why, []).append(name)
        return fits, lacking

    def changed_since(self, version: int) -> Iterator[str]:
        """The nodes that have changed since a version of the ledger."""
        for name, at in reversed(self._changed_at.items()):
            if at <= version:
                return
            yield name

    def problem(self, name: str) -> str:
        """Why no device of a node can be allocated; empty if devices can be allocated."""
        return self._problems.get(name, "" if name in self.nodes else "the node is not known yet")

    def _node(self, name: str) -> Node:
        found = self.nodes.get(name)
        if found is None:  # a Pod may be seen before its node
            found = self.nodes[name] = Node()
            self._problems[name] = "the node is not known yet"
        return found

    def _give_back(self, name: str, shares: Mapping[str, Share]) -> None:
        self._change(name, shares, taken=False)
        self._freed.add(name)

    def _change(self, name: str, shares: Mapping[str, Share], *, taken: bool) -> None:
        node = self._node(name)
        (node.take if taken else node.give_back)(shares)
        self._note(name)

    def _note(self, name: str) -> None:
        self.version += 1
        self._changed_at.pop(name, None)
        self._changed_at[name] = self.version

    def _look(self, name: str) -> None:
        """Reports once if a node is overcommitted, as after a device shrank or a manual edit."""
        node = self.nodes[name]
        if any(room.node == name for room in self._kept.values()):
            return  # reserved room is counted twice on purpose
        if node.is_over and name not in self._over:
            self._over.add(name)
            self._report("overcommitted", node=name)
        elif not node.is_over:
            self._over.discard(name)


def ledger_of(nodes: Iterable[Object], pods: Iterable[Object]) -> Ledger:
    """Builds a ledger from a snapshot of Node and Pod objects."""
    ledger = Ledger()
    for one in nodes:
        ledger.node_changed(("", one["metadata"]["name"]), None, read_node(one))
    for one in pods:
        if seen := read_pod(one):
            ledger.pod_changed(seen.pod, None, seen)
    return ledger
