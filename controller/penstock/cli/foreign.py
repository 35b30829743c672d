"""Warnings about untracked processes on the node's devices, which have no quota."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def foreign_of_agent(state_dir: Path | None) -> list[str]:
    """`foreign_lines` from the agent's report; empty if the agent does not answer."""
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
    return f"{count} untracked process{'' if count == 1 else 'es'}"
