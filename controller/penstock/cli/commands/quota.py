"""`penstock quota set|show`: change or show a running tenant's quota."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import (
    ModeChoice,
    Output,
    OutputFormat,
    Oversubscribe,
    StateDir,
    TenantName,
)
from penstock.cli.say import say

if TYPE_CHECKING:
    from penstock.node.rpc import AgentClient
    from penstock.node.tenants.state import State

app = typer.Typer(help="Show or change the quota of a running tenant.", no_args_is_help=True)


@app.command("set")
def set_(
    tenant: TenantName,
    memory: Annotated[
        str | None, typer.Option(metavar="QUANTITY", help="Device memory: 8Gi.")
    ] = None,
    cores: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="Share of device time.")
    ] = None,
    mode: ModeChoice = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="WHICH", help="Change only this device of the tenant (index or UUID)."
        ),
    ] = None,
    oversubscribe: Oversubscribe = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Also shrink below what is in use: the agent ends the program after its grace.",
        ),
    ] = False,
    state_dir: StateDir = None,
) -> None:
    """Change the quota of a running tenant, effective from its next launch or allocation.

    An agent refuses to reduce memory below what is in use, except with --force. Without an agent a
    program is never ended; it keeps the memory that it has and gets no more.
    """
    from penstock.cli.by_agent import resize_by_agent
    from penstock.model import parse_cores, parse_memory
    from penstock.node.admission.resize import Resize, resize
    from penstock.node.tenants.state import State
    from penstock.node.tenants.tenant import find_tenant

    change = Resize(
        memory_bytes=parse_memory(memory) if memory is not None else None,
        cores_permille=parse_cores(cores) if cores is not None else None,
        mode=mode,
        device=device,
        oversubscribe=oversubscribe,
        force=force,
    )
    if (answer := resize_by_agent(state_dir, tenant, change)) is not None:
        for line in answer:
            say(line)
        return
    state = State.read(state_dir)
    find_tenant(state, tenant)  # a directory without tenants has no lock either
    for note in resize(state, tenant, change):
        say(note)
    _show(state, tenant, Output.table)


@app.command()
def show(
    tenant: TenantName,
    output: OutputFormat = Output.table,
    state_dir: StateDir = None,
) -> None:
    """Show a tenant's granted quota and how much it may use right now."""
    from penstock.cli.by_agent import agent_of_another
    from penstock.model import PenstockError
    from penstock.node.tenants.state import State

    try:
        _show(State.read(state_dir), tenant, output)
    except PenstockError:
        agent = agent_of_another(state_dir)
        if agent is None:
            raise
        with agent:
            _show_told(agent, tenant, output)


def _show(state: State, name: str, output: Output) -> None:
    from penstock.model import format_cores, format_memory
    from penstock.node.tenants.tenant import find_tenant
    from penstock_shim.pages import read_quota

    tenant = find_tenant(state, name)
    grant = tenant.grant()
    limits = read_quota(tenant.quota_page).limits
    shares: list[dict[str, object]] = [
        {
            "device": share.index,
            "uuid": share.uuid,
            "name": share.name,
            "memory": format_memory(limit.memory_bytes),
            "cores": format_cores(limit.cores_permille),
            "allowed_now": format_cores(limit.allowance),
        }
        for share, limit in zip(grant.devices, limits.devices, strict=True)
    ]
    _print(name, limits.mode, grant.policy, shares, output)


def _show_told(agent: AgentClient, name: str, output: Output) -> None:
    """Prints the quota as reported by another user's agent."""
    from penstock.model import PenstockError, format_cores, format_memory
    from penstock.node.rpc import mode_of

    tenants = {tenant.name: tenant for tenant in agent.tenants()}
    if name not in tenants:
        raise PenstockError(
            f"the agent has no tenant {name!r}", "it has ended or never existed",
            "list the tenants with penstock ps",
            reason="no-such-tenant",
        )  # fmt: skip
    tenant = tenants[name]
    shares: list[dict[str, object]] = [
        {
            "device": share.device_index,
            "uuid": share.device_uuid,
            "name": share.device_name,
            "memory": format_memory(share.memory_bytes),
            "cores": format_cores(share.cores_permille),
            "allowed_now": format_cores(share.allowance_permille),
        }
        for share in tenant.shares
    ]
    _print(name, mode_of(tenant), tenant.policy or None, shares, output)


def _print(
    name: str, mode: str, policy: str | None, shares: list[dict[str, object]], output: Output
) -> None:
    if output is not Output.table:
        from penstock.cli.render.output import print_data

        print_data({"tenant": name, "mode": mode, "policy": policy, "devices": shares}, output)
        return
    for share in shares:
        print(
            f"{name}: memory {share['memory']}, cores {share['cores']} "
            f"(now {share['allowed_now']}), {mode}, "
            f"device {share['device']} ({share['name']}, {share['uuid']})"
        )
