"""The table of sub-commands."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock import __version__
from penstock.cli import policy

app = typer.Typer(
    name="penstock",
    help="Apportions AI compute: slices of accelerators with hard memory and compute quotas.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(policy.app, name="policy")


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
