"""`penstock run` through the agent, which grants and supervises the tenant."""

from __future__ import annotations

import dataclasses
import os
import secrets
import signal
import time
from typing import TYPE_CHECKING

from penstock.cli.say import say

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.node.admission.admit import Request
    from penstock.node.admission.resize import Resize
    from penstock.node.launch.child import Child
    from penstock.node.rpc import AgentClient, EventMessage, GrantedMessage, TenantMessage

LOOK_S = 3600.0  # the agent supervises the tenant, so only signals need to wake this process
AWAITED_S, AWAITED_LOOK_S = 3.0, 0.05
# Agent events that end a program, and the words that describe each of them to the user.
ENDINGS = {
    "terminate": "ended by the agent (SIGTERM)",
    "kill": "ended by the agent (SIGKILL)",
    "revoked": "revoked",
}
KILLED = {128 + signal.SIGTERM, 128 + signal.SIGKILL}
LATELY_S = 2.0
RECORDED_LOOKS = 6  # number of polls, because an event is recorded shortly after the action
ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}


def run_by_agent(state_dir: Path | None, request: Request, *, quiet: bool) -> int | None:
    """Runs the command as a tenant of the agent.

    Returns the command's exit code, or None if there is no agent.

    Raises:
        PenstockError: the agent does not grant the tenant.
    """
    from penstock.node.launch.child import CommandNotStartedError, block_signals, unblock_signals
    from penstock.node.tenants.state import agent_sockets

    if not agent_sockets(state_dir):  # checked without loading gRPC
        return None
    blocked = block_signals()  # before gRPC starts threads, which would take them
    from penstock.node.rpc import find_agent

    agent = find_agent(state_dir)
    # A killed agent leaves its socket behind. If a service manager restarts the agent, it responds
    # again within moments.
    deadline = time.monotonic() + AWAITED_S
    while agent is None and agent_sockets(state_dir) and time.monotonic() < deadline:
        if (received := signal.sigtimedwait(ENDING, AWAITED_LOOK_S)) is not None:
            return 128 + received.si_signo
        agent = find_agent(state_dir)
    if agent is None:
        unblock_signals(blocked)
        for file in agent_sockets(state_dir):
            say(f"no agent responded at {file} within {AWAITED_S:g} s; continuing without an agent")
        return None
    with agent:
        try:
            child, granted = start_by_agent(agent, request, blocked)
        except CommandNotStartedError as error:
            say(error)
            return error.exit_code
    for line in [] if quiet else [*granted.notes, _summary(granted.tenant)]:
        say(line)
    # The agent notices this process's exit, and ends the tenant when its last process ends.
    code = child.wait(lambda: None, LOOK_S)
    if code != 0 and (why := _why_ended(state_dir, granted.tenant.name, code)):
        say(why)
    return code


def _why_ended(state_dir: Path | None, name: str, code: int) -> str | None:
    """Describes the agent's action that has just ended the tenant; None if there was none."""
    from penstock.model import PenstockError
    from penstock.node.rpc import find_agent

    found: list[EventMessage] = []
    try:
        agent = find_agent(state_dir)
        if agent is None:
            return None
        with agent:
            for _ in range(RECORDED_LOOKS if code in KILLED else 1):
                found = [one for one in agent.events([name]) if _has_just_ended(one, code)]
                if found:
                    break
                time.sleep(AWAITED_LOOK_S)
    except PenstockError:  # the agent is restarting; the event remains recorded
        return None
    if not found:
        return None
    last = found[-1]
    return (
        f"tenant {name}: {ENDINGS[last.event]}{f': {last.reason}' if last.reason else ''}; "
        f"see penstock events {name}"
    )


def _has_just_ended(event: EventMessage, code: int) -> bool:
    """Whether `event` can explain the exit: an older event may have ended only a child process."""
    if event.event not in ENDINGS:
        return False
    return code in KILLED or time.time() - event.time.ToNanoseconds() / 1e9 < LATELY_S


def agent_of_another(state_dir: Path | None) -> AgentClient | None:
    """The agent of another user, usually root, whose files this user cannot read.

    Returns None if there is no agent, or if the agent runs as this user.
    """
    from penstock.node.tenants.state import agent_sockets

    if all(file.lstat().st_uid == os.geteuid() for file in agent_sockets(state_dir)):
        return None  # checked without loading gRPC
    from penstock.node.rpc import AgentClient, find_agent_socket

    found = find_agent_socket(state_dir)
    if found is None or found.lstat().st_uid == os.geteuid():
        return None
    return AgentClient.local(found)


def resize_by_agent(state_dir: Path | None, name: str, change: Resize) -> list[str] | None:
    """Resizes a tenant of the agent; returns lines to print, or None if no agent owns the tenant.

    Raises:
        PenstockError: the agent refuses the change.
    """
    from penstock.model import PenstockError
    from penstock.node.tenants.state import agent_sockets

    if not agent_sockets(state_dir):
        return None
    from penstock.node.rpc import find_agent

    agent = find_agent(state_dir)
    if agent is None:
        return None
    with agent:
        try:
            answer = agent.resize(name, change)
        except PenstockError as error:
            if error.reason == "not-now":  # its own penstock run supervises it
                return None
            raise
    return [*answer.notes, _summary(answer.tenant)]


def start_by_agent(
    agent: AgentClient, request: Request, blocked: set[int]
) -> tuple[Child, GrantedMessage]:
    """Requests a tenant and starts its command; returns the child process and the agent's response.

    `blocked` is the set of signals that `block_signals` returned.

    Raises:
        PenstockError: the agent does not grant the tenant.
        CommandNotStartedError: the command could not be started; the tenant is revoked.
    """
    from penstock.node.launch.child import Child, CommandNotStartedError
    from penstock.node.tenants.environment import program_environment

    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    granted = agent.grant(
        dataclasses.replace(
            request,
            lifetime="processes",
            request_id=secrets.token_hex(8),
            candidates=[visible] if visible and not agent.node().machine else (),
        )
    )
    try:
        child = Child(request.command, program_environment(granted.environment), blocked)
    except CommandNotStartedError:
        agent.revoke(granted.tenant.name, 0, "its command could not be started")
        raise
    return child, granted


def _summary(tenant: TenantMessage) -> str:
    from penstock.model import format_cores, human_memory

    shares = "; ".join(
        f"{human_memory(share.memory_bytes)} and {format_cores(share.cores_permille)} cores of "
        f"device {share.device_index} ({share.device_name})"
        for share in tenant.shares
    )
    return f"tenant {tenant.name}: {shares}, granted by the agent"
