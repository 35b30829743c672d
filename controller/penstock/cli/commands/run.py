"""`penstock run`: runs a command and all its children under a quota."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock.cli.options import (
    Cores,
    Devices,
    Memory,
    ModeChoice,
    Oversubscribe,
    PolicyFile,
    Simulate,
    StateDir,
    check_command,
)
from penstock.cli.pool_arguments import CardKind, Priority, Wait, claim_of
from penstock.cli.pool_run import run_in_pool
from penstock.cli.request import (
    chosen_policy,
    open_source,
    refuse_inside_a_tenant,
    request_of,
    summary,
    warn_of_obstacles,
)
from penstock.cli.say import say


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND…", help="The command to run.")
    ],
    memory: Memory = None,
    cores: Cores = None,
    tflops: Annotated[
        str,
        typer.Option(
            metavar="N",
            help="Instead of --cores: claim N TFLOPS of the compute pool, on whichever nodes; a "
            'PyTorch program has them as torch.device("penstock").',
        ),
    ] = "",
    priority: Priority = "0",
    wait: Wait = None,
    kind: CardKind = "",
    device: Devices = None,
    mode: ModeChoice = None,
    policy: PolicyFile = None,
    simulate: Simulate = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the tenant (default: the command's name).")
    ] = None,
    oversubscribe: Oversubscribe = False,
    no_agent: Annotated[
        bool,
        typer.Option(
            "--no-agent", help="Supervise the tenant in this process even if an agent runs."
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    state_dir: StateDir = None,
) -> None:
    """Run a command and all its children under a memory and compute quota.

    The exit code is the command's, or 128+n if signal n ended it. Signals are forwarded to the
    command. With --tflops the exit code is 75 if the pool has no room.
    """
    from penstock.cli.by_agent import run_by_agent
    from penstock.model import PenstockError
    from penstock.node.admission.admit import admit
    from penstock.node.launch.child import CommandNotStartedError
    from penstock.node.launch.run import run_tenant
    from penstock.node.tenants.state import State

    refuse_inside_a_tenant()
    check_command(command)
    if tflops or priority != "0" or wait is not None or kind:
        given = {
            "--cores": cores, "--device": device, "--mode": mode, "--policy": policy,
            "--simulate": simulate, "--oversubscribe": oversubscribe, "--no-agent": no_agent,
        }  # fmt: skip
        _refuse_with_tflops(tflops, [option for option, value in given.items() if value])
        claim = claim_of(tflops, priority, wait, memory, kind, "pool", None, name)
        run_in_pool(claim, command, state_dir, quiet=quiet)
    loaded = chosen_policy(policy, command[0], memory, cores)
    if not quiet:
        warn_of_obstacles(command[0])
    request = request_of(command, memory, cores, device or [], mode, loaded, name, oversubscribe)
    if not no_agent and simulate is None:
        done = run_by_agent(state_dir, request, quiet=quiet)
        if done is not None:
            sys.exit(done)
    state = State.open(state_dir)
    if state.has_agent():
        raise PenstockError(
            f"an agent owns {state.directory}",
            "a second process would grant the same devices twice",
            "leave --no-agent and --simulate out, or name another --state-dir",
        )
    source = open_source(state, simulate)
    admitted = admit(state, request, source)

    def announce() -> None:
        for line in [] if quiet else [*admitted.notes, summary(admitted.grant)]:
            say(line)

    try:
        code = run_tenant(state, admitted, command, source, announce)
    except CommandNotStartedError as error:
        say(error)
        code = error.exit_code
    sys.exit(code)


def _refuse_with_tflops(tflops: str, given: list[str]) -> None:
    """Raises `PenstockError` for options that do not belong together."""
    from penstock.model import PenstockError

    if not tflops:
        raise PenstockError(
            "it is not clear how much of the pool is claimed", "--tflops is missing or empty",
            "add --tflops N, or leave --priority, --wait and --kind out",
        )  # fmt: skip
    if given:
        raise PenstockError(
            f"{' and '.join(given)} cannot be given with --tflops",
            "the pool chooses the devices, and the quota follows from the TFLOPS",
            "leave it out",
        )
