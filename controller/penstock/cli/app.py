"""The table of sub-commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli.commands import (
    agent,
    bench,
    card,
    demo,
    devices,
    doctor,
    events,
    explain,
    grant,
    kube,
    policy,
    pool,
    ps,
    quota,
    run,
    scale,
    shim,
    simulate,
    tenant,
    top,
    train,
    usage,
)
from penstock.cli.options import AS_IS

SUB_COMMANDS: dict[str, Callable[..., None] | typer.Typer] = {
    "run": run.run,
    "simulate": simulate.simulate,
    "quota": quota.app,
    "scale": scale.app,
    "ps": ps.ps,
    "top": top.top,
    "devices": devices.devices,
    "usage": usage.usage,
    "events": events.events,
    "explain": explain.explain,
    "grant": grant.grant,
    "suspend": tenant.suspend,
    "resume": tenant.resume,
    "revoke": tenant.revoke,
    "agent": agent.app,
    "kube": kube.app,
    "pool": pool.app,
    "card": card.app,
    "train": train.app,
    "policy": policy.app,
    "shim": shim.app,
    "bench": bench.app,
    "demo": demo.app,
    "doctor": doctor.doctor,
}
WRAPPERS = {"run", "simulate", "doctor"}  # commands whose last arguments are another command


def command_line(word: str = "") -> typer.Typer:
    """The Typer app for a command line that begins with `word`.

    If `word` is a sub-command, only that sub-command is built, because building all of them takes
    as long as many commands need to run.
    """
    app = typer.Typer(
        name="penstock",
        help="Share AI accelerators between programs, with hard quotas on memory and compute time.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    for name in [word] if word in SUB_COMMANDS else SUB_COMMANDS:
        command = SUB_COMMANDS[name]
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name, context_settings=AS_IS if name in WRAPPERS else None)(command)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"penstock {__version__}")
        raise typer.Exit


def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Share AI accelerators between programs, with hard quotas on memory and compute time."""
