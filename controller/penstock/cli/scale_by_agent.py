"""`penstock scale` with an agent: replicas are its tenants, and outlive agent and scaler."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.node.tenants.state import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.autoscaling.set_store import SetSpec, SetStore
    from penstock.node.admission.admit import Request
    from penstock.node.rpc import AgentClient

SET_LABEL = "penstock.io/replica-set"  # on a replica's tenant; its value is the set's directory
# Run with `python -c`, so a user's file in the working directory must not shadow a module.
PROGRAM = (
    "import sys\n"
    "if sys.path and sys.path[0] == '': del sys.path[0]\n"
    "from penstock.cli.scale_by_agent import main; main(sys.argv)"
)


class AgentTenancy:
    """Tenants that the agent grants and supervises, and removes when their processes have ended."""

    keeper = PROGRAM

    def clear(self, tenant: str) -> None:
        """Does nothing, because the agent removes the tenant."""


def agent_is_anothers(state_dir: Path | None) -> bool:
    """Whether another user's agent owns `state_dir`; this user's sets are then kept elsewhere."""
    return (
        state_dir is not None
        and State(state_dir).agent_socket.exists()
        and state_dir.stat().st_uid != os.geteuid()
    )


def agent_socket(state_dir: Path | None, store: SetStore) -> str | None:
    """Socket of the agent that grants the replicas; None if there is no agent.

    While an agent restarts, its running replicas still belong to it.
    """
    from penstock.autoscaling.process_tree import trees_of
    from penstock.node.tenants.state import agent_sockets

    if agent_sockets(state_dir):  # checked without loading gRPC
        from penstock.node.rpc import find_agent_socket

        found = find_agent_socket(state_dir)
        if found is not None:
            return str(found)
    before = store.read_spec()
    return before.agent if before and before.agent and trees_of(store.directory) else None


def main(arguments: list[str]) -> None:
    """The keeper of one replica: see `penstock.autoscaling.replica_keeper.main`."""
    from penstock.autoscaling import replica_keeper as keeper
    from penstock.node.launch.child import block_signals

    blocked = block_signals()  # before gRPC starts threads, which would take them

    def run(store: SetStore, spec: SetSpec, number: int, started: Callable[[], None]) -> int:
        from penstock.cli.by_agent import LOOK_S, start_by_agent

        labels = {SET_LABEL: str(store.directory)}
        request = dataclasses.replace(spec.request_of(number), labels=labels)
        with agent_at(spec.agent or "") as agent:
            _end_predecessor(agent, request)
            child, _ = start_by_agent(agent, request, blocked)
        started()
        return child.wait(lambda: None, LOOK_S)

    keeper.main(arguments, run)


def _end_predecessor(agent: AgentClient, request: Request) -> None:
    """Frees the replica's name at once if a restarted agent still waits for its processes.

    This is safe because the new keeper holds the replica's lock: none of the old processes is left,
    and none will start.
    """
    for tenant in agent.tenants():
        ours = tenant.labels.get(SET_LABEL) == request.labels[SET_LABEL]
        if tenant.name == request.name and ours and not tenant.processes:
            agent.revoke(tenant.name, 0, "its replica is restarted")


def room_by_agent(socket: str, request: Request, most: int) -> tuple[int, str]:
    """How many more replicas fit on the agent's devices, like `autoscaling.headroom.room_for`."""
    from penstock.autoscaling.headroom import room_in
    from penstock.devices import Device
    from penstock.node.admission.checks import Free

    with agent_at(socket) as agent:
        told = agent.node().devices
    devices = [
        Device(one.index, one.uuid, one.name, one.memory_bytes, 0,
               one.tflops if one.HasField("tflops") else None, one.simulated)
        for one in told
    ]  # fmt: skip
    free = {one.uuid: Free(one.free_memory_bytes, one.free_cores_permille, ()) for one in told}
    return room_in(devices, free, request, most)


def agent_at(socket: str) -> AgentClient:
    """Client of the agent at `socket`. Raises `PenstockError` if the agent does not respond."""
    from penstock.node.rpc import find_agent

    agent = find_agent(Path(socket).parent) if Path(socket).exists() else None
    if agent is None:
        raise PenstockError(
            "no agent answers",
            f"its socket is {socket}",
            "start it again",
            reason="unavailable",
        )
    return agent
