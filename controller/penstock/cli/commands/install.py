"""`penstock agent install|uninstall`: the agent as a systemd service."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.say import say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.node.service import Step

Root = Annotated[
    Path,
    typer.Option("--root", metavar="DIR", help="Root of another system: an image, a chroot."),
]
Program = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Program that the service runs (default: this penstock)."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done.")]
SHELLS = ("bash", "zsh", "fish")


def install(
    root: Root = Path("/"),
    program: Program = None,
    no_start: Annotated[
        bool, typer.Option("--no-start", help="Write the files; leave the service as it is.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Install the agent as a service (unit, configuration, completion, command) and start it.

    Run it again after an upgrade to update the files and restart the agent. Tenants keep running,
    and options and policies in /etc/penstock are left as they are.
    """
    from penstock.node.service import Installation, restart_service, runs_systemd

    here = root == Path("/")
    _check_right(here=here, dry_run=dry_run)
    own = Path(sys.executable).parent / "penstock"
    completions = {shell: _completion(shell) for shell in SHELLS}
    _carry_out(Installation(root).install(program or own, completions), dry_run=dry_run)
    if dry_run or no_start or not here:
        return
    if not runs_systemd():
        say("this machine was not booted by systemd: start penstock agent by other means")
        return
    for done in restart_service():
        say(done)


def uninstall(
    root: Root = Path("/"),
    purge: Annotated[
        bool,
        typer.Option("--purge", help="Also remove configuration, policies and usage records."),
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Stop the service and remove its files; tenants keep running under their last quota.

    Configuration, policies and usage records are kept unless --purge is given.
    """
    from penstock.node.service import Installation, runs_systemd, stop_service

    _check_right(here=root == Path("/"), dry_run=dry_run)
    installation = Installation(root)
    steps = list(installation.uninstall(purge=purge))  # a refusal must come before any change
    active = (
        root == Path("/")
        and runs_systemd()
        and Path("/etc/systemd/system/penstock-agent.service").exists()
    )
    if purge and not active:
        installation.check_idle()
    if active and not dry_run:
        for done in stop_service():
            say(done)
        if purge:
            installation.check_idle()  # its agent granted tenants until it ended
    _carry_out(steps, dry_run=dry_run)
    if active and not dry_run:
        subprocess.run(["systemctl", "daemon-reload"], check=False)


def _check_right(*, here: bool, dry_run: bool) -> None:
    """Raises `PenstockError` if root is needed and the user is not root."""
    if here and not dry_run and os.geteuid() != 0:
        from penstock.model import PenstockError

        raise PenstockError(
            "cannot change this machine's service", "you are not root",
            "run it as root, for example with sudo; --dry-run shows what would be done",
        )  # fmt: skip


def _carry_out(steps: Iterable[Step], *, dry_run: bool) -> None:
    """Carries out all steps. Planning ends before the first step, so a refusal changes nothing."""
    for step in list(steps):
        if not dry_run:
            try:
                step.carry_out()
            except PermissionError as error:
                from penstock.model import PenstockError

                why = error.strerror or str(error)
                raise PenstockError(
                    f"cannot {step.verb} {step.path}", why, "run it as root"
                ) from error
        say(f"would {step}" if dry_run and step.act else step)


def _completion(shell: str) -> str:
    """The completion script that the command line generates for `shell`."""
    code = "import sys; sys.argv = ['penstock']; from penstock.cli import main; main()"
    environment = {**os.environ, "_PENSTOCK_COMPLETE": f"source_{shell}"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout
