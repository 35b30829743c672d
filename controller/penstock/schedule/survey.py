"""Many nodes for one Pod: those where it fits, and what the others lack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.schedule.ask import Ask, Request
from penstock.schedule.fit import why_not
from penstock.schedule.reasons import Shortage, grouped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.schedule.device import Node
    from penstock.schedule.reasons import Kind


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
    groups: dict[Kind, list[str]] = {}
    for name, node in nodes.items():
        groups.setdefault(_kind(node, memory_bytes, permille), []).append(name)
    lacking: dict[str, Shortage] = {}
    for kind, names in groups.items():
        if kind == "search":  # rare, and for several causes
            request = Request((Ask("", memory_bytes=memory_bytes, cores_permille=permille),))
            lacking |= {name: why_not(nodes[name], request) or Shortage("search") for name in names}
        elif kind != "said":
            nearest = Shortage(
                kind,
                memory_bytes=memory_bytes - max(nodes[name].best_bytes for name in names),
                cores_permille=permille - max(nodes[name].best_permille for name in names),
                most=max(nodes[name].largest_bytes for name in names),
            )
            lacking.update(dict.fromkeys(names, nearest))
    return groups.get("said", []), grouped(lacking)


def _kind(node: Node, memory_bytes: int, permille: int) -> Kind:
    """What the node lacks; "said": nothing; "search": it is to be looked at closely."""
    if permille > node.largest_permille:
        return "search"
    if memory_bytes > node.best_bytes:
        if memory_bytes > node.largest_bytes:
            return "memory-of-device"
        return "memory" if permille <= node.best_permille else "memory-and-cores"
    if permille > node.best_permille:
        return "cores"
    for at, free_bytes in enumerate(node.free_bytes):
        if (
            free_bytes >= memory_bytes
            and node.free_permille[at] >= permille
            and node.devices[at].healthy
        ):
            return "said"
    return "apart"
