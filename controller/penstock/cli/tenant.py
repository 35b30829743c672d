"""`penstock suspend|resume|revoke`: suspend, resume or end a tenant of the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import Grace, StateDir, TenantName
from penstock.cli.say import say
from penstock.model.limits import DEFAULT_GRACE

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.node.rpc import AgentClient

Reason = Annotated[
    str, typer.Option(metavar="WORDS", help="Reason, recorded in the tenant's events.")
]


def suspend(tenant: TenantName, reason: Reason = "", state_dir: StateDir = None) -> None:
    """Hold back a tenant's launches until penstock resume. It keeps its memory."""
    with agent_of(state_dir) as agent:
        agent.suspend(tenant, reason)
    say(f"tenant {tenant} is suspended: its launches wait for penstock resume {tenant}")


def resume(tenant: TenantName, state_dir: StateDir = None) -> None:
    """Let a suspended tenant launch again."""
    with agent_of(state_dir) as agent:
        agent.resume(tenant)
    say(f"tenant {tenant} is resumed")


def revoke(
    tenant: TenantName,
    grace: Grace = DEFAULT_GRACE,
    reason: Reason = "",
    state_dir: StateDir = None,
) -> None:
    """End a tenant: its processes, then its quota."""
    from penstock.model import parse_duration_ns

    with agent_of(state_dir) as agent:
        ended = agent.revoke(tenant, parse_duration_ns(grace, or_none=True), reason)
    killed = f", {ended.killed} were killed after {grace}" if ended.killed else ""
    say(f"tenant {tenant} is gone: {ended.ended} process{'es' * (ended.ended != 1)} ended{killed}")


def agent_of(state_dir: Path | None) -> AgentClient:
    """Client of the running agent. Raises `PenstockError` if there is none."""
    from penstock.model import PenstockError
    from penstock.node.rpc import find_agent

    found = find_agent(state_dir)
    if found is None:
        raise PenstockError(
            "no agent runs here", "only an agent can do this",
            "start one (penstock agent), or name its --state-dir",
        )  # fmt: skip
    return found
