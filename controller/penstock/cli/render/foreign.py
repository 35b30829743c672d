"""Lines about the node's devices: untracked processes, which have no quota, and their owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model import listing

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.node.rpc import NodeMessage


def foreign_lines(node: NodeMessage) -> list[str]:
    """One line for each device with untracked processes."""
    return [
        f"device {one.index}: {_counted(one.foreign_processes)}, without a quota: "
        f"{', '.join(one.foreign)}{', …' if one.foreign_processes > len(one.foreign) else ''}"
        for one in node.devices
        if one.foreign_processes
    ]


def owner_lines(node: NodeMessage) -> list[str]:
    """One line if devices belong to a compute pool."""
    pools = [str(one.index) for one in node.devices if one.owner == "pool"]
    if not pools:
        return []
    which = f"device {pools[0]} belongs" if len(pools) == 1 else f"devices {listing(pools)} belong"
    return [f"{which} to the compute pool: penstock pool acquire claims blocks of it"]


def foreign_of_agent(state_dir: Path | None) -> list[str]:
    """`foreign_lines` and `owner_lines` of the agent; empty if it does not respond."""
    from penstock.node.tenants.state import agent_sockets

    if not agent_sockets(state_dir):
        return []
    from penstock.model import PenstockError
    from penstock.node.rpc import find_agent

    try:
        agent = find_agent(state_dir)
        if agent is None:
            return []
        with agent:
            node = agent.node()
            return [*foreign_lines(node), *owner_lines(node)]
    except PenstockError:
        return []


def _counted(count: int) -> str:
    return f"{count} untracked process{'' if count == 1 else 'es'}"
