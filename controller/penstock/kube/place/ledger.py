"""What of each node's devices is taken: by Pods that are placed, and by Bindings under way.

Only this process places Pods of its scheduler, so that what it sees late can only make nodes look
fuller than they are: a Pod that ended, a node that came. What it placed itself it knows at once,
from before its Binding is posted until the Pod is seen with it, or certainly never will be.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.kube.device import read_devices
from penstock.kube.names import BY_EXTENDER, DEVICES, HELD, PLACED, RESIZE, WAY
from penstock.kube.placed import at_most, read_placement
from penstock.kube.request import roles
from penstock.model import PenstockError
from penstock.schedule.ask import totals
from penstock.schedule.device import Device, Node, Share
from penstock.schedule.reasons import Shortage, grouped
from penstock.schedule.survey import survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.kube.api import Object
    from penstock.kube.cache import Key
    from penstock.kube.placed import Placement
    from penstock.schedule.ask import Request, Role

FINISHED = frozenset({"Succeeded", "Failed"})  # of a Pod's phases: its containers are gone


@dataclass(frozen=True)
class SeenNode:
    """A Node object, reduced."""

    devices: tuple[Device, ...] = ()
    problem: str = ""  # why none of them can be given to Pods


@dataclass(frozen=True)
class SeenPod:
    """A Pod that holds shares of a node's devices."""

    uid: str
    node: str
    shares: Mapping[str, Share]  # by device UUID: the most that may be in force
    running: Running | None = None  # None: nobody asked to change its shares


@dataclass(frozen=True)
class Running:
    """A Pod whose shares its owner asked to change."""

    asked: str  # the annotation; empty: no longer
    placement: Placement
    held: Placement  # what may still be in force beyond it
    roles: tuple[tuple[str, Role], ...]
    version: str = field(compare=False)  # of its object: what is decided is written over this one


def read_node(one: Object) -> SeenNode:
    """What matters here of a Node."""
    metadata = one["metadata"]
    text = (metadata.get("annotations") or {}).get(DEVICES)
    if text is None:
        return SeenNode(problem="no devices are registered")
    way = (metadata.get("labels") or {}).get(WAY)
    if way != BY_EXTENDER:
        return SeenNode(problem=f"devices are given by {way or 'nobody'}: label {WAY}")
    try:
        found = read_devices(text)
    except PenstockError as error:
        return SeenNode(problem=error.what)
    return SeenNode(
        tuple(
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
    )


def read_pod(one: Object) -> SeenPod | None:
    """What it holds; None: nothing, or no longer. One that is being deleted holds it still."""
    metadata = one["metadata"]
    annotations = metadata.get("annotations") or {}
    text = annotations.get(PLACED)
    node = one["spec"].get("nodeName")
    if not text or not node or (one.get("status") or {}).get("phase") in FINISHED:
        return None
    asked, over = annotations.get(RESIZE, ""), annotations.get(HELD, "")
    try:
        placement = read_placement(text)
    except PenstockError:  # no scheduler wrote it, and its node will refuse it
        return None
    held: Placement = {}
    if over:
        with contextlib.suppress(PenstockError):  # likewise
            held = read_placement(over)
    order = roles(one)
    shares = totals(at_most(placement, held) if held else placement, order)
    running = None
    if asked or held:
        running = Running(asked, placement, held, tuple(order), metadata["resourceVersion"])
    return SeenPod(metadata["uid"], node, shares, running)


class Ledger:
    """Nodes with what is taken of them. Its callbacks belong to two caches, of Nodes and Pods."""

    def __init__(self, report: Callable[..., None] = lambda *_, **__: None) -> None:
        self.nodes: dict[str, Node] = {}
        self._problems: dict[str, str] = {}
        self._assumed: dict[str, tuple[Key, str, Mapping[str, Share]]] = {}  # by uid of the Pod
        self._growing: dict[str, tuple[str, Mapping[str, Share]]] = {}  # likewise
        self._report = report
        self._over: set[str] = set()

    def node_changed(self, key: Key, _: SeenNode | None, new: SeenNode | None) -> None:
        """A Node came, changed or went. What is taken of it stands."""
        name = key[1]
        node = self._node(name)
        if new is None or new.problem:
            self._problems[name] = new.problem if new else "the node is not known"
            node.set_devices(())
        else:
            self._problems.pop(name, None)
            node.set_devices(new.devices)
        self._look(name)
        if new is None and node.is_untaken:
            del self.nodes[name]
            self._problems.pop(name, None)

    def pod_changed(self, _: Key, old: SeenPod | None, new: SeenPod | None) -> None:
        """A Pod that holds shares came, changed or went."""
        if old is not None:
            # What grows is written over the version seen last: any other is it, or rules it out.
            self.release_growth(old.uid)
        if old is not None and new is None:
            self.release(old.uid)
        if old is not None:
            self._node(old.node).give_back(old.shares)
            self._look(old.node)
        if new is not None:
            self.release(new.uid)  # from now on its object says it
            self._node(new.node).take(new.shares)
            self._look(new.node)

    def assume(self, uid: str, pod: Key, node: str, shares: Mapping[str, Share]) -> None:
        """A Binding of that Pod is about to be posted."""
        self.release(uid)
        self._assumed[uid] = pod, node, shares
        self._node(node).take(shares)

    def release(self, uid: str) -> None:
        """Its Binding certainly did not happen, or its object says it."""
        if found := self._assumed.pop(uid, None):
            _, node, shares = found
            self._node(node).give_back(shares)

    def grow(self, uid: str, node: str, more: Mapping[str, Share]) -> None:
        """A larger placement of that Pod is about to be written: so much more of each device."""
        self.release_growth(uid)
        self._growing[uid] = node, more
        self._node(node).take(more)

    def release_growth(self, uid: str) -> None:
        """It certainly was not written, or the Pod's object says it."""
        if found := self._growing.pop(uid, None):
            node, more = found
            self._node(node).give_back(more)

    def assumed(self) -> dict[str, Key]:
        """The Pods, by uid, whose Bindings have not been seen."""
        return {uid: pod for uid, (pod, _, _) in self._assumed.items()}

    def survey(self, names: Iterable[str], request: Request) -> tuple[list[str], dict[str, str]]:
        """Of these nodes, those where it fits, and in words why it does not on each other one."""
        problems, nodes = self._problems, self.nodes
        usable = {name: nodes[name] for name in names if name in nodes and name not in problems}
        fits, lacking = survey(usable, request)
        others = {
            name: Shortage("said", text=problems.get(name, "the node is not known yet"))
            for name in names
            if name not in usable
        }
        if others:
            lacking |= grouped(others)
        return fits, lacking

    def problem(self, name: str) -> str:
        """Why nothing of that node can be given; empty: it can."""
        return self._problems.get(name, "" if name in self.nodes else "the node is not known yet")

    def _node(self, name: str) -> Node:
        found = self.nodes.get(name)
        if found is None:  # Pods may be seen before their node
            found = self.nodes[name] = Node()
            self._problems[name] = "the node is not known yet"
        return found

    def _look(self, name: str) -> None:
        """Says it once when more is taken than there is: a device shrank, or somebody meddled."""
        node = self.nodes[name]
        if node.is_over and name not in self._over:
            self._over.add(name)
            self._report("overcommitted", node=name)
        elif not node.is_over:
            self._over.discard(name)
