"""`penstock agent leave-pool`: make a node forget its compute pool, so that it may join another."""

from __future__ import annotations

import os

import typer

from penstock.cli.options import StateDir


def leave_pool(state_dir: StateDir = None) -> None:
    """Forget the compute pool that this node belongs to, so that it may join another one.

    The agent must be stopped, and no tenant of the pool may be left on the node.
    """
    from penstock.cli.say import say
    from penstock.model import PenstockError, listing
    from penstock.node.agent.agent_lock import take_node
    from penstock.node.agent.pool_tenants import is_pools
    from penstock.node.tenants.pool_record import read_pool_record, remove_pool_record
    from penstock.node.tenants.state import State
    from penstock.node.tenants.tenant import live_grants, tenants_of

    state = State.open(state_dir)
    lock = take_node(state.agent_lock, f"an agent is running on {state.directory}")
    try:
        record = read_pool_record(state)
        if record is None:
            say("this node is in no pool")
            raise typer.Exit
        left = [one.tenant for one in live_grants(tenants_of(state)) if is_pools(one)]
        if left:
            raise PenstockError(
                "the node cannot leave its pool",
                f"tenants of pool {record.pool} are left: {listing(left)}",
                "start the agent, end them with penstock pool drain, and stop it again; or start "
                "it without --pool, and end them with penstock revoke", reason="not-now",
            )  # fmt: skip
        remove_pool_record(state)
        say(f"this node has left pool {record.pool or '(not joined yet)'}")
    finally:
        os.close(lock)
