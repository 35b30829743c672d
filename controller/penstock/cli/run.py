"""`penstock run`: a command and all its children under a quota."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import Mode, StateDir, check_command, one_of
from penstock.cli.say import say

if TYPE_CHECKING:
    from penstock.devices import DeviceSource
    from penstock.node.grant import Grant
    from penstock.node.run import Request
    from penstock.node.state import State
    from penstock.policy import LoadedPolicy


def run(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND…", help="What to run.")],
    memory: Annotated[
        str | None, typer.Option(metavar="QUANTITY", help="Device memory: 8Gi; 8Gi,4Gi on two.")
    ] = None,
    cores: Annotated[
        str | None,
        typer.Option(metavar="PERCENT", help="Share of device time: 0.1 to 100; 30,50 on two."),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(metavar="WHICH", help="Index, UUID or start of one; a,b or twice for two."),
    ] = None,
    mode: Annotated[
        Mode | None,
        typer.Option(
            parser=one_of(Mode),
            metavar="MODE",
            help="strict (never above the quota) or elastic (uses idle time).",
        ),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="QuotaPolicy; options override it.")
    ] = None,
    simulate: Annotated[
        str | None, typer.Option(metavar="PROFILE[,N]", help="Run on a simulated GPU: h200, l4,2.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the tenant (default: the command's).")
    ] = None,
    oversubscribe: Annotated[
        bool, typer.Option("--oversubscribe", help="Grant what is granted already; warns.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
    state_dir: StateDir = None,
) -> None:
    """Run a command and all its children under a memory and compute quota.

    The exit code is the command's, 128+n when signal n ended it. Signals are passed on.
    """
    from penstock.model import PenstockError
    from penstock.node.launch import CommandNotStartedError
    from penstock.node.processes import TENANT_VARIABLE
    from penstock.node.run import admit, run_tenant
    from penstock.node.state import State

    if os.environ.get(TENANT_VARIABLE):
        raise PenstockError(
            "this is already a tenant",
            f"${TENANT_VARIABLE} is {os.environ[TENANT_VARIABLE]}, and quotas do not nest",
            "start it from outside, or change this tenant with penstock quota set",
        )
    check_command(command)
    loaded = _policy_for(policy, command[0]) if policy else None
    request = _request(command, memory, cores, device or [], mode, loaded, name, oversubscribe)
    state = State.open(state_dir)
    source = _devices(state, simulate)
    admitted = admit(state, request, source)

    def announce() -> None:
        for line in [] if quiet else [*admitted.notes, _summary(admitted.grant)]:
            say(line)

    try:
        code = run_tenant(state, admitted, source, announce)
    except CommandNotStartedError as error:
        say(error)
        code = error.exit_code
    sys.exit(code)


def _devices(state: State, simulate: str | None) -> DeviceSource:
    if simulate is not None:
        from penstock.node.machines import simulated_machine

        return simulated_machine(state, simulate)
    from penstock.devices import open_devices

    return open_devices()


def _policy_for(file: Path, command: str) -> LoadedPolicy:
    from penstock.node.run import user_name
    from penstock.policy import load_files, policy_for_command

    return policy_for_command(load_files([file]), command, user_name(), os.getuid())


def _request(
    command: list[str],
    memory: str | None,
    cores: str | None,
    devices: list[str],
    mode: Mode | None,
    loaded: LoadedPolicy | None,
    name: str | None,
    oversubscribe: bool,
) -> Request:
    """Options over policy over defaults. Raises `PenstockError` when a limit is missing."""
    from penstock.model import PenstockError, parse_cores, parse_memory
    from penstock.node.run import Request

    spec = loaded.policy.spec if loaded else None
    limits = spec.limits if spec else None
    memory_bytes = [limits.memory] if limits and limits.memory is not None else None
    permille = [limits.cores] if limits and limits.cores is not None else None
    if memory is not None:
        memory_bytes = [parse_memory(figure) for figure in memory.split(",")]
    if cores is not None:
        permille = [parse_cores(figure) for figure in cores.split(",")]
    tflops = limits.tflops if limits and permille is None else None
    missing = [
        option
        for option, given in (("--memory 8Gi", memory_bytes), ("--cores 30", permille or tflops))
        if given is None
    ]
    if memory_bytes is None or missing:
        where = f"neither given nor in policy {loaded}" if loaded else "no policy is given"
        fix = f"add {' and '.join(missing)} (cores are percent of one device)"
        raise PenstockError("a quota has memory and cores", where, fix)
    return Request(
        command=command,
        memory_bytes=memory_bytes,
        cores_permille=permille,
        tflops=tflops,
        mode=mode.value if mode else spec.mode if spec else "strict",
        devices=devices,
        count=spec.devices.count if spec else 1,
        name=name,
        oversubscribe=oversubscribe,
        policy=str(loaded) if loaded else None,
    )


def _summary(grant: Grant) -> str:
    from penstock.model import format_cores, human_memory

    shares = "; ".join(
        f"{human_memory(share.memory_bytes)} and {format_cores(share.cores_permille)} cores of "
        f"{'simulated ' if grant.machine else ''}device {share.index} ({share.name})"
        for share in grant.devices
    )
    return (
        f"tenant {grant.tenant}: {shares}, {grant.mode}; cooperative: without a root agent, a "
        "program of yours could undo it"
    )
