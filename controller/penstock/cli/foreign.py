"""Processes on the node's devices that are no tenant's, in words: no quota holds for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.node.rpc import NodeMessage


def foreign_lines(node: NodeMessage) -> list[str]:
    """A line for each device that has some."""
    return [
        f"device {one.index}: {_counted(one.foreign_processes)} of no tenant, without a quota: "
        f"{', '.join(one.foreign)}{', …' if one.foreign_processes > len(one.foreign) else ''}"
        for one in node.devices
        if one.foreign_processes
    ]


def foreign_of_agent(state_dir: Path | None) -> list[str]:
    """The same, from the agent; none where it cannot be asked."""
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
            return foreign_lines(agent.node())
    except PenstockError:
        return []


def _counted(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"
