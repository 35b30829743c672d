"""Reasons why a Pod fits on no node: what each node lacks, and one sentence for many nodes.

An example is "6 nodes: memory short by 2Gi at best; 2 nodes: cordoned". Nodes that lack the same
thing are grouped, and the group shows the value of the node that comes closest, because five
hundred values would help nobody.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.model import format_cores, human_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Kind = Literal[
    "memory",  # not enough is free
    "cores",
    "memory-and-cores",
    "apart",  # enough of both is free, but on different devices
    "devices",  # fewer devices than requested have enough free
    "too-few",  # the node has fewer devices than requested
    "memory-of-device",  # more memory than any of the node's devices has
    "cores-of-device",
    "tflops-of-device",
    "tflops-unknown",
    "model",
    "health",
    "search",  # several containers, and no combination that was tried fits
    "said",  # the reason is in `text`
]


@dataclass(frozen=True)
class Shortage:
    """What one node lacks, and how much more would be needed."""

    kind: Kind
    memory_bytes: int = 0
    cores_permille: int = 0
    count: int = 0  # devices that fit
    wanted: int = 0  # devices requested
    most: int = 0  # bytes, permille or TFLOPS of the node's largest device
    text: str = ""


def together(shortages: Iterable[tuple[str, Shortage | None]]) -> dict[str, list[str]]:
    """Nodes by what they lack, in words; a node with None lacks nothing and is left out."""
    groups: dict[tuple[Kind, str], tuple[list[Shortage], list[str]]] = {}
    for node, one in shortages:
        if one is not None:
            members, names = groups.setdefault((one.kind, one.text), ([], []))
            members.append(one)
            names.append(node)
    found: dict[str, list[str]] = {}
    for members, names in groups.values():
        found.setdefault(words(members), []).extend(names)
    return found


def grouped(shortages: Mapping[str, Shortage]) -> dict[str, str]:
    """Each node's shortage in words, identical for all nodes that lack the same thing."""
    found = {name: why for why, names in together(shortages.items()).items() for name in names}
    return {name: found[name] for name in shortages}


def sentence(reasons: Iterable[str]) -> str:
    """One sentence for many nodes: "6 nodes: memory short by 2Gi at best; 1 node: cordoned"."""
    counted = Counter(reasons)
    ordered = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    return "; ".join(f"{count} node{'s' * (count > 1)}: {why}" for why, count in ordered)


def words(members: Sequence[Shortage]) -> str:
    """Several nodes' shortages of one kind in words, with the value of the closest node."""
    kind = members[0].kind
    memory_bytes = min(one.memory_bytes for one in members)
    permille = min(one.cores_permille for one in members)
    nearest = max(members, key=lambda one: one.count)
    most = max(one.most for one in members)
    by = "memory short by " + human_memory(memory_bytes)
    at_best = f"cores short by {format_cores(permille)}%"
    return {
        "memory": f"{by} at best",
        "cores": f"{at_best} at best",
        "memory-and-cores": f"{by} and {at_best} at best",
        "apart": "memory and cores are free, but not on the same device",
        "devices": f"{nearest.wanted} devices with so much free are asked for, "
        f"{nearest.count} at best",
        "too-few": f"{nearest.wanted} devices are asked for, {nearest.count} at best are there",
        "memory-of-device": f"more memory is asked for than a device has, "
        f"{human_memory(most, down=True)} at best",
        "cores-of-device": f"more cores are asked for than a device has, {format_cores(most)}% at "
        "best",
        "tflops-of-device": f"more TFLOPS are asked for than a device has, {most} at best",
        "tflops-unknown": "the TFLOPS of its devices are not known: ask for cores",
        "model": "no device of the model that is asked for",
        "health": "no healthy device",
        "search": "the shares of several containers do not fit together",
        "said": members[0].text,
    }[kind]
