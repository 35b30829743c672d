"""Many nodes for one Pod: those where it fits, and what the others lack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.schedule.ask import Ask, Request
from penstock.schedule.fit import why_not
from penstock.schedule.reasons import Shortage, grouped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.schedule.device import Node


LARGE = 1 << 63  # more may be taken than there is: free is below 0 then


def survey(nodes: Mapping[str, Node], request: Request) -> tuple[list[str], dict[str, str]]:
    """The nodes where the request fits, and of each other one in words why it does not."""
    ask = request.asks[0]
    if (
        len(request.asks) == 1
        and ask.count == 1
        and ask.memory_bytes is not None
        and ask.cores_permille is not None
        and not request.model
    ):
        return _of_one_share(nodes, ask.memory_bytes, ask.cores_permille)
    fits, lacking = [], {}
    for name, node in nodes.items():
        shortage = why_not(node, request)
        if shortage is None:
            fits.append(name)
        else:
            lacking[name] = shortage
    return fits, grouped(lacking)


def _of_one_share(
    nodes: Mapping[str, Node], memory_bytes: int, permille: int
) -> tuple[list[str], dict[str, str]]:
    """The same for what nearly all Pods ask, without an object a node: it runs for each Pod."""
    fits: list[str] = []
    no_device: list[str] = []
    too_large: list[str] = []
    short_of_both: list[str] = []
    short_of_memory: list[str] = []
    short_of_cores: list[str] = []
    apart: list[str] = []
    largest = both_bytes = both_permille = most_bytes = most_permille = -LARGE
    for name, node in nodes.items():
        if memory_bytes <= node.best_bytes:
            if permille <= node.best_permille:
                for at, free in enumerate(node.free_bytes):
                    if (
                        free >= memory_bytes
                        and node.free_permille[at] >= permille
                        and node.devices[at].healthy
                    ):
                        fits.append(name)
                        break
                else:
                    apart.append(name)
            elif permille <= node.largest_permille:
                short_of_cores.append(name)
                most_permille = max(most_permille, node.best_permille)
            else:
                no_device.append(name)
        elif not node.largest_bytes:
            no_device.append(name)
        elif memory_bytes > node.largest_bytes:
            too_large.append(name)
            largest = max(largest, node.largest_bytes)
        elif permille > node.largest_permille:
            no_device.append(name)
        elif permille <= node.best_permille:
            short_of_memory.append(name)
            most_bytes = max(most_bytes, node.best_bytes)
        else:
            short_of_both.append(name)
            both_bytes = max(both_bytes, node.best_bytes)
            both_permille = max(both_permille, node.best_permille)
    lacking: dict[str, Shortage] = {}
    for names, shortage in (
        (too_large, Shortage("memory-of-device", most=largest)),
        (short_of_both, Shortage(
            "memory-and-cores",
            memory_bytes=memory_bytes - both_bytes,
            cores_permille=permille - both_permille,
        )),
        (short_of_memory, Shortage("memory", memory_bytes=memory_bytes - most_bytes)),
        (short_of_cores, Shortage("cores", cores_permille=permille - most_permille)),
        (apart, Shortage("apart")),
    ):  # fmt: skip
        lacking.update(dict.fromkeys(names, shortage))
    request = Request((Ask("", memory_bytes=memory_bytes, cores_permille=permille),))
    for name in no_device:  # rare, and for several causes
        lacking[name] = why_not(nodes[name], request) or Shortage("health")
    return fits, grouped(lacking)
