"""Feasibility of one Pod on many nodes: the nodes where it fits, and what other nodes lack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.scheduling.placement.fit import why_not
from penstock.scheduling.placement.pod_request import Ask, Request
from penstock.scheduling.placement.reasons import Shortage, together, words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.scheduling.placement.device_state import Node
    from penstock.scheduling.placement.reasons import Kind

    Known = dict[str, Shortage | None]  # by node; None if the request fits


def survey(
    nodes: Mapping[str, Node], request: Request, known: Known | None = None
) -> tuple[list[str], dict[str, list[str]]]:
    """The nodes where the request fits, and the other nodes grouped by what they lack, in words.

    Args:
        nodes: The nodes, by name.
        request: The Pod's request.
        known: Results of an earlier survey for the same request, without the nodes that have
            changed since; new results are added to it.
    """
    ask = request.asks[0]
    if (
        len(request.asks) == 1
        and ask.count == 1
        and ask.memory_bytes is not None
        and ask.cores_permille is not None
        and not request.model
    ):
        return _of_one_share(nodes, ask.memory_bytes, ask.cores_permille)
    known = {} if known is None else known
    for name, node in nodes.items():
        if name not in known:
            known[name] = why_not(node, request)
    fits = [name for name in nodes if known[name] is None]
    return fits, together((name, known[name]) for name in nodes)


def _of_one_share(
    nodes: Mapping[str, Node], memory_bytes: int, permille: int
) -> tuple[list[str], dict[str, list[str]]]:
    """`survey` for a request of one share, the usual case; for speed, without objects per node."""
    groups: dict[Kind, list[str]] = {}
    for name, node in nodes.items():
        groups.setdefault(_kind(node, memory_bytes, permille), []).append(name)
    fits = groups.pop("said", [])
    closely = groups.pop("search", None)  # rare, and needs a detailed check of each node
    if closely:
        request = Request((Ask("", memory_bytes=memory_bytes, cores_permille=permille),))
        one_each = [(name, why_not(nodes[name], request)) for name in closely]
        one_each += [
            (name, _nearest(kind, [nodes[name]], memory_bytes, permille))
            for kind, names in groups.items()
            for name in names
        ]
        return fits, together(one_each)
    return fits, {
        words([_nearest(kind, [nodes[name] for name in names], memory_bytes, permille)]): names
        for kind, names in groups.items()
    }


def _nearest(kind: Kind, nodes: list[Node], memory_bytes: int, permille: int) -> Shortage:
    """The smallest shortage of `nodes`."""
    return Shortage(
        kind,
        memory_bytes=memory_bytes - max(node.best_bytes for node in nodes),
        cores_permille=permille - max(node.best_permille for node in nodes),
        most=max(node.largest_bytes for node in nodes),
    )


def _kind(node: Node, memory_bytes: int, permille: int) -> Kind:
    """The kind of the node's shortage; "said" if none, "search" if a detailed check is needed."""
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
