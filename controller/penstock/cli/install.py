"""`penstock agent install|uninstall`: the agent as a service of systemd."""

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
    typer.Option("--root", metavar="DIR", help="Of another system: an image, a chroot."),
]
Program = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="What the service runs (default: this penstock)."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done.")]
SHELLS = ("bash", "zsh", "fish")


def install(
    root: Root = Path("/"),
    program: Program = None,
    no_start: Annotated[
        bool, typer.Option("--no-start", help="Write the files; leave the service as it is.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Make the agent a service: unit, configuration, completion, penstock on the path; start it.

    Done again, after an upgrade say, it brings the files up to date and starts the agent anew;
    tenants run on. Options and policies in /etc/penstock are left as they are.
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
        typer.Option("--purge", help="Remove configuration, policies and metered use as well."),
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Stop the service and take its files away; tenants run on under their last quota.

    What administrators wrote, and what was metered, stays without --purge.
    """
    from penstock.node.service import Installation, runs_systemd, stop_service

    _check_right(here=root == Path("/"), dry_run=dry_run)
    installation = Installation(root)
    steps = list(installation.uninstall(purge=purge))  # refusals come first
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
            installation.check_idle()  # what the service's own agent granted up to its end
    _carry_out(steps, dry_run=dry_run)
    if active and not dry_run:
        subprocess.run(["systemctl", "daemon-reload"], check=False)


def _check_right(*, here: bool, dry_run: bool) -> None:
    """Raises `PenstockError` before anything is done that only root may do."""
    if here and not dry_run and os.geteuid() != 0:
        from penstock.model import PenstockError

        raise PenstockError(
            "the service is this machine's", "you are not root",
            "do it as root, for example with sudo; --dry-run says what would be done",
        )  # fmt: skip


def _carry_out(steps: Iterable[Step], *, dry_run: bool) -> None:
    """All is planned before anything is done: a refusal changes nothing."""
    for step in list(steps):
        if not dry_run:
            try:
                step.carry_out()
            except PermissionError as error:
                from penstock.model import PenstockError

                why = error.strerror or str(error)
                raise PenstockError(
                    f"cannot {step.verb} {step.path}", why, "do it as root"
                ) from error
        say(f"would {step}" if dry_run and step.act else step)


def _completion(shell: str) -> str:
    """The script that the command line itself writes for a shell."""
    code = "import sys; sys.argv = ['penstock']; from penstock.cli import main; main()"
    environment = {**os.environ, "_PENSTOCK_COMPLETE": f"source_{shell}"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout
