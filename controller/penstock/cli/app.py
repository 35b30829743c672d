"""The table of sub-commands."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock import __version__
from penstock.cli import (
    agent,
    bench,
    demo,
    devices,
    doctor,
    events,
    grant,
    policy,
    ps,
    quota,
    run,
    scale,
    shim,
    simulate,
    tenant,
    top,
    usage,
)
from penstock.cli.options import AS_IS

app = typer.Typer(
    name="penstock",
    help="Apportions AI compute: slices of accelerators with hard memory and compute quotas.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(context_settings=AS_IS)(run.run)
app.command(context_settings=AS_IS)(simulate.simulate)
app.add_typer(quota.app, name="quota")
app.add_typer(scale.app, name="scale")
app.command()(ps.ps)
app.command()(top.top)
app.command()(devices.devices)
app.command()(usage.usage)
app.command()(events.events)
app.command()(grant.grant)
app.command()(tenant.suspend)
app.command()(tenant.resume)
app.command()(tenant.revoke)
app.add_typer(agent.app, name="agent")
app.add_typer(policy.app, name="policy")
app.add_typer(shim.app, name="shim")
app.add_typer(bench.app, name="bench")
app.command()(demo.demo)
app.command(context_settings=AS_IS)(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Apportions AI compute: slices of accelerators with hard memory and compute quotas."""
