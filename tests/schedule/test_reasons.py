"""Reasons: what a node lacks for a Pod, and in words for many nodes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.share import Share
from penstock.scheduling.placement.device_state import Node
from penstock.scheduling.placement.feasibility import survey
from penstock.scheduling.placement.fit import why_not
from penstock.scheduling.placement.reasons import Shortage, grouped, sentence

from .cases import asks, devices, freed, node_of, nodes, request_of, shares, single_requests

GIB = 1 << 30


class Lack:
    """What each device of a node lacks for a request of one container, by itself."""

    def __init__(self, node: Node, request) -> None:
        (self.ask,) = request.asks
        self.model = request.model
        self.of_model = [one for one in node.devices if request.model in {"", one.model}]
        self.healthy = [one for one in self.of_model if one.healthy]
        self.memory, self.cores = {}, {}
        for one in self.healthy:
            if share := self.ask.share(one):
                left = node.left(one.uuid)
                self.memory[one.uuid] = share.memory_bytes - left.memory_bytes
                self.cores[one.uuid] = share.cores_permille - left.cores_permille

    def is_enough(self, several) -> bool:
        return sum(several) >= self.ask.count

    def have_memory(self, more: int = 0) -> bool:
        """Whether enough devices have the memory, if each had `more`."""
        return self.is_enough(one <= more for one in self.memory.values())

    def have_cores(self, more: int = 0) -> bool:
        return self.is_enough(one <= more for one in self.cores.values())

    def fitting(self) -> int:
        return sum(self.memory[one] <= 0 and self.cores[one] <= 0 for one in self.memory)


def is_real(lack: Lack, named: Shortage) -> bool:
    """Whether the devices lack what is named, to the unit."""
    ask, healthy = lack.ask, lack.healthy
    memory, cores = named.memory_bytes, named.cores_permille
    lacks_memory = not lack.have_memory(memory - 1) and lack.have_memory(memory)
    lacks_cores = not lack.have_cores(cores - 1) and lack.have_cores(cores)
    rated = [one.tflops for one in healthy if one.tflops is not None]
    return {
        "memory": lacks_memory and memory > 0 and lack.have_cores(),
        "cores": lacks_cores and cores > 0 and lack.have_memory(),
        "memory-and-cores": lacks_memory and lacks_cores and memory > 0 and cores > 0,
        "apart": lack.have_memory() and lack.have_cores() and lack.fitting() == 0,
        "devices": lack.fitting() == named.count < named.wanted == ask.count,
        "too-few": len(healthy) == named.count < named.wanted == ask.count,
        "memory-of-device": ask.memory_bytes is not None
        and not lack.is_enough(one.memory_bytes >= ask.memory_bytes for one in healthy)
        and named.most == max((one.memory_bytes for one in healthy), default=0),
        "cores-of-device": ask.cores_permille is not None
        and not lack.is_enough(one.cores_permille >= ask.cores_permille for one in healthy)
        and named.most == max((one.cores_permille for one in healthy), default=0),
        "tflops-of-device": ask.tflops is not None
        and not lack.is_enough(ask.tflops <= one for one in rated)
        and named.most == int(max(rated, default=0)),
        "tflops-unknown": ask.tflops is not None and not rated,
        "model": not lack.of_model,
        "health": bool(lack.of_model) and not healthy,
    }[named.kind]


def without(node: Node, lack: Lack, named: Shortage) -> Node:
    """The node if what is named were not lacking."""
    ask = lack.ask
    if named.kind in {"memory", "cores", "memory-and-cores"}:
        more = Share(named.memory_bytes, named.cores_permille)
        return freed(node, {one.uuid: more for one in node.devices})
    if named.kind in {"apart", "devices"}:
        return freed(node, {
            uuid: Share(max(0, lack.memory[uuid]), max(0, lack.cores[uuid])) for uuid in lack.memory
        })  # fmt: skip
    changes = {
        "model": lambda _: {"model": lack.model},
        "health": lambda _: {"healthy": True},
        "too-few": lambda _: {},
        "memory-of-device": lambda one: {"memory_bytes": max(one.memory_bytes, ask.memory_bytes)},
        "cores-of-device": lambda one: {
            "cores_permille": max(one.cores_permille, ask.cores_permille)
        },
        "tflops-of-device": lambda one: {"tflops": max(one.tflops or 0.0, float(ask.tflops))},
        "tflops-unknown": lambda _: {"tflops": float(ask.tflops)},
    }[named.kind]
    found = [replace(one, **changes(one)) for one in node.devices]
    if named.kind == "too-few":
        found += [
            replace(lack.healthy[0], uuid=f"new{at}") for at in range(named.wanted - named.count)
        ]
    other = Node(found)
    other.take({one.uuid: node.taken(one.uuid) for one in node.devices})
    return other


@settings(max_examples=300)
@given(nodes, single_requests)
def test_each_named_shortage_is_real_and_without_all_of_them_the_pod_fits(node, request):
    named = []
    while shortage := why_not(node, request):
        lack = Lack(node, request)
        assert is_real(lack, shortage), shortage
        assert shortage.kind not in named, "removed, it is not named again"
        named.append(shortage.kind)
        node = without(node, lack, shortage)


@given(st.lists(st.tuples(devices, st.lists(shares, max_size=4)), min_size=1, max_size=6), asks)
def test_a_survey_of_many_nodes_agrees_with_each_node_alone(nodes, ask):
    made = {}
    for at, (found, taken) in enumerate(nodes):
        made[f"n{at}"] = node_of(found, taken)
    request = request_of([ask])
    alone = {name: why_not(node, request) for name, node in made.items()}
    fits, lacking = survey(made, request)
    assert fits == [name for name, shortage in alone.items() if shortage is None]
    said = grouped({name: one for name, one in alone.items() if one})
    assert {name: why for why, names in lacking.items() for name in names} == said
    assert sum(map(len, lacking.values())) == len(made) - len(fits)


def test_many_nodes_are_one_sentence_with_the_figure_of_the_nearest_one():
    shortages = {
        **{f"m{at}": Shortage("memory", memory_bytes=(at + 2) * GIB) for at in range(6)},
        "one": Shortage("cores", cores_permille=25),
        **{f"o{at}": Shortage("said", text="cordoned") for at in range(2)},
    }
    assert sentence(grouped(shortages).values()) == (
        "6 nodes: memory short by 2Gi at best; 2 nodes: cordoned; "
        "1 node: cores short by 2.5% at best"
    )
    assert sentence([]) == ""
