"""`penstock suspend|resume|revoke`: suspend, resume or end a tenant of the agent."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import Grace, StateDir, TenantName
from penstock.cli.say import say
from penstock.cli.suspension_wait import wait_for_release, wait_for_restore
from penstock.model.terms import DEFAULT_GRACE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.node.rpc import AgentClient

Reason = Annotated[
    str, typer.Option(metavar="WORDS", help="Reason, recorded in the tenant's events.")
]


NoWait = Annotated[
    bool,
    typer.Option(
        "--no-wait", help="Return at once; penstock ps shows how far the device memory is."
    ),
]
ReleaseMemory = Annotated[
    bool,
    typer.Option(
        "--release-memory",
        help="Also move the tenant's device memory to the host, and free its share for others.",
    ),
]
Onto = Annotated[
    list[str] | None,
    typer.Option(
        "--device",
        metavar="WHICH",
        help="Restore released memory on this device, equal to the tenant's own; several: 0,1.",
    ),
]


def suspend(
    tenant: TenantName,
    release_memory: ReleaseMemory = False,
    no_wait: NoWait = False,
    reason: Reason = "",
    state_dir: StateDir = None,
) -> None:
    """Hold back a tenant's launches until penstock resume. The tenant keeps its memory.

    With --release-memory, the driver then moves its device memory to the host, and others can be
    granted its share meanwhile. The program continues at penstock resume as if nothing had been.
    If the driver refuses that, the tenant goes on as before.
    """
    from penstock.model import human_memory

    with agent_of(state_dir) as agent:
        agent.suspend(tenant, reason, release_memory=release_memory)
        if not release_memory:
            say(f"tenant {tenant} is suspended: its launches wait for penstock resume {tenant}")
            return
        if no_wait:
            say(f"tenant {tenant} is suspended; its device memory is being released")
            return
        with _going_on(tenant):
            released = wait_for_release(agent, tenant)
    say(
        f"tenant {tenant} is suspended, with {human_memory(released.host_bytes)} of device memory "
        f"in host memory: it waits for penstock resume {tenant}"
    )


def resume(
    tenant: TenantName,
    device: Onto = None,
    no_wait: NoWait = False,
    state_dir: StateDir = None,
) -> None:
    """Let a suspended tenant launch again, once its device memory is back if it was released."""
    with agent_of(state_dir) as agent:
        resumed = agent.resume(tenant, device or ())
        if resumed.suspension:
            if no_wait:
                say(f"tenant {tenant} goes on once its device memory is restored")
                return
            with _going_on(tenant):
                wait_for_restore(agent, tenant)
    say(f"tenant {tenant} is resumed")


@contextlib.contextmanager
def _going_on(tenant: str) -> Iterator[None]:
    """Says at Ctrl-C that only the waiting has ended."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"the agent goes on with it; penstock ps shows how far tenant {tenant} is")
        raise


def revoke(
    tenant: TenantName,
    grace: Grace = DEFAULT_GRACE,
    reason: Reason = "",
    state_dir: StateDir = None,
) -> None:
    """End a tenant: end its processes, then remove its quota."""
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
            "start one (penstock agent), or give its state directory with --state-dir",
        )  # fmt: skip
    return found
