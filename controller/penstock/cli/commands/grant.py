"""`penstock grant`: create a tenant for containers."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.options import (
    Cores,
    Devices,
    Memory,
    ModeChoice,
    Output,
    OutputFormat,
    PolicyFile,
    StateDir,
)
from penstock.cli.say import say


def grant(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the tenant.")],
    memory: Memory = None,
    cores: Cores = None,
    device: Devices = None,
    mode: ModeChoice = None,
    policy: PolicyFile = None,
    output: OutputFormat = Output.table,
    state_dir: StateDir = None,
) -> None:
    """Create a tenant for containers; it exists until penstock revoke ends it.

    Prints the option for the container: podman run --device penstock.io/vgpu=NAME …
    """
    import dataclasses

    from penstock.cli.commands.tenant import agent_of
    from penstock.cli.request import chosen_policy, request_of

    loaded = chosen_policy(policy, name, memory, cores)
    request = request_of([name], memory, cores, device or [], mode, loaded, name, False)
    wanted = dataclasses.replace(request, container=True, lifetime="until-revoked")
    with agent_of(state_dir) as agent:
        granted = agent.grant(wanted)
    for note in granted.notes:
        say(note)
    if output is not Output.table:
        from penstock.cli.render.output import print_data

        print_data({"name": name, "devices": list(granted.cdi_devices)}, output)
        return
    print(" ".join(f"--device {one}" for one in granted.cdi_devices))
