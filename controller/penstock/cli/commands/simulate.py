"""`penstock simulate`: run a command on a simulated GPU, without shim and quota."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer

from penstock.cli.options import StateDir, check_command
from penstock.cli.say import say


def simulate(
    profile: Annotated[
        str,
        typer.Argument(
            metavar="PROFILE[,N]", help="h200, h100, a100-80g, l4, t4 or a file; N devices."
        ),
    ],
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND…", help="The command to run.")
    ],
    mig: Annotated[
        str | None,
        typer.Option(
            metavar="SIZES",
            help="Divide device 0 into MIG instances (1g,2g,3g): NVML lists them, but nothing runs "
            "on them.",
        ),
    ] = None,
    state_dir: StateDir = None,
) -> None:
    """Run a command on a simulated GPU without shim and quota, as a baseline for comparisons.

    Commands that run with the same profile at the same time, including those of `penstock run`,
    share one simulated machine. The command replaces this process.
    """
    from penstock.model import PenstockError
    from penstock.node.launch.child import why_not
    from penstock.node.tenants.simulated_machines import simulated_machine
    from penstock.node.tenants.state import State
    from penstock.node.tenants.tenant_processes import TENANT_VARIABLE

    if os.environ.get(TENANT_VARIABLE):
        raise PenstockError(
            "this is already a tenant", "a simulated GPU inside would replace the granted one",
            "run it outside the tenant",
        )  # fmt: skip
    if command[0] == "--":
        command = command[1:]  # the parser keeps `--` once it has read PROFILE
    if not command:
        raise PenstockError(
            "the command is missing",
            "nothing follows --",
            f"write penstock simulate {profile} -- COMMAND",
        )
    check_command(command)
    source = simulated_machine(State.open(state_dir), profile)
    if mig is not None and source.machine is not None:
        from penstock_shim.simulator import Machine, mig_instances

        with Machine(source.machine) as machine:
            machine.set_mig(mig_instances(machine.devices()[0], mig))
    environment = {**os.environ, **source.environment("")}
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - the user's own command
    except OSError as error:
        say(f"cannot run {command[0]!r}: {why_not(command[0], error)}; check the command")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)
