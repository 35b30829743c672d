"""`penstock grant`: a tenant for containers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import Mode, Output, StateDir, one_of
from penstock.cli.say import say


def grant(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the tenant.")],
    memory: Annotated[
        str | None, typer.Option(metavar="QUANTITY", help="Device memory: 8Gi; 8Gi,4Gi on two.")
    ] = None,
    cores: Annotated[
        str | None,
        typer.Option(metavar="PERCENT", help="Share of device time: 0.1 to 100; 30,50 on two."),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(metavar="WHICH", help="Index, UUID or start of one; 0,1 is two."),
    ] = None,
    mode: Annotated[
        Mode | None,
        typer.Option(parser=one_of(Mode), metavar="MODE", help="strict or elastic."),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="QuotaPolicy; options override it.")
    ] = None,
    output: Annotated[
        Output,
        typer.Option(
            "--output", "-o", parser=one_of(Output), metavar="FORMAT", help="table, json or yaml."
        ),
    ] = Output.table,
    state_dir: StateDir = None,
) -> None:
    """Make a tenant for containers, which stays until penstock revoke.

    Prints what a container is given: podman run --device penstock.io/vgpu=NAME …
    """
    import dataclasses

    from penstock.cli.request import policy_of, request_of
    from penstock.cli.tenant import agent_of

    loaded = policy_of(policy, name) if policy else None
    request = request_of([name], memory, cores, device or [], mode, loaded, name, False)
    wanted = dataclasses.replace(request, container=True, lifetime="until-revoked")
    with agent_of(state_dir) as agent:
        granted = agent.grant(wanted)
    for note in granted.notes:
        say(note)
    if output is not Output.table:
        from penstock.cli.output import print_data

        print_data({"name": name, "devices": list(granted.cdi_devices)}, output)
        return
    print(" ".join(f"--device {one}" for one in granted.cdi_devices))
