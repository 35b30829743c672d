"""`penstock pool acquire`: claims blocks, for a command on this node or until they are released."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import Output, OutputFormat, StateDir, check_command
from penstock.cli.pool_arguments import (
    CardKind,
    PoolAddress,
    PoolCa,
    PoolCert,
    PoolKey,
    PoolMemory,
    Priority,
    SpanChoice,
    Tflops,
    Wait,
    claim_of,
    place_of,
)
from penstock.cli.pool_run import exit_without_room

if TYPE_CHECKING:
    from penstock.client.connect import PoolPlace
    from penstock.node.rpc import AcquireMessage, PoolClaim


def acquire(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND…]", help="Runs on this node as the application."),
    ] = None,
    tflops: Tflops = "",
    priority: Priority = "0",
    wait: Wait = None,
    memory: PoolMemory = None,
    kind: CardKind = "",
    span: SpanChoice = "node",
    node: Annotated[
        str | None,
        typer.Option(metavar="NODE", help="Without COMMAND: blocks of this node (default: here)."),
    ] = None,
    anywhere: Annotated[
        bool, typer.Option("--anywhere", help="Without COMMAND: blocks of any node.")
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="Name of the application (default: the pool chooses one).")
    ] = None,
    elastic: Annotated[
        bool, typer.Option("--elastic", help="It may use what others on its cards leave idle.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    output: OutputFormat = Output.table,
    pool: PoolAddress = None,
    pool_cert: PoolCert = None,
    pool_key: PoolKey = None,
    pool_ca: PoolCa = None,
    state_dir: StateDir = None,
) -> None:
    """Claim blocks; with COMMAND for as long as it runs, otherwise until penstock pool release.

    With COMMAND: the command runs on this node as the application. When it ends, the blocks are
    given back, and processes that it left behind are ended.

    Exit codes: the command's, 128+n if signal n ended it, 127 or 126 if it could not be started; 75
    if there is no room or the wait was in vain; 2 for any other error; 128+n if signal n came
    while it waited.
    """
    from penstock.model import PenstockError

    if not tflops:
        raise PenstockError(
            "it is not clear how much is claimed", "--tflops is missing or empty",
            "add --tflops N, such as --tflops 50",
        )  # fmt: skip
    claim = claim_of(tflops, priority, wait, memory, kind, span, node, name, elastic=elastic)
    if node is not None and anywhere:
        raise PenstockError(
            "--node and --anywhere contradict each other", f"one names {node}, the other any node",
            "give only one of them",
        )  # fmt: skip
    place = place_of(pool, pool_cert, pool_key, pool_ca, state_dir)
    with exit_without_room():
        if command:
            check_command(command)
            _check_is_here(pool, node, output, anywhere=anywhere)
            sys.exit(_run(place, claim, command, quiet=quiet))
        _hold(place, claim, output, anywhere=anywhere, quiet=quiet)


def _check_is_here(pool: str | None, node: str | None, output: Output, *, anywhere: bool) -> None:
    """Raises `PenstockError` for options that a command on this node cannot have."""
    from penstock.model import PenstockError

    given = [
        option
        for option, is_given in (
            ("--pool", pool is not None),
            ("--node", node is not None),
            ("--anywhere", anywhere),
            ("-o", output is not Output.table),
        )
        if is_given
    ]
    if given:
        raise PenstockError(
            f"{' and '.join(given)} cannot be given with a command",
            "a command runs on this node, through this node's agent, and has the output to itself",
            "leave it out, or leave the command out and start it on the node yourself",
        )


def _run(place: PoolPlace, claim: PoolClaim, command: list[str], *, quiet: bool) -> int:
    """Runs the command as the application; returns its exit code."""
    from penstock.cli.pool_application import run_application
    from penstock.cli.request import refuse_inside_a_tenant, warn_of_obstacles

    refuse_inside_a_tenant()
    if not quiet:
        warn_of_obstacles(command[0])
    return run_application(place, claim, command, quiet=quiet)


def _hold(
    place: PoolPlace, claim: PoolClaim, output: Output, *, anywhere: bool, quiet: bool
) -> None:
    """Claims until released, and prints what is held."""
    from penstock.cli.pool_waiting import InterruptedWaitError, wait_for_grant
    from penstock.node.launch.child import block_signals, unblock_signals

    claim = dataclasses.replace(claim, lifetime="until-revoked")
    blocked = block_signals()  # before gRPC starts threads, which would take them
    with place.connect() as client:
        if client.target.server == "agent" and not claim.node:
            claim = _anywhere(claim) if anywhere else place.on_this_node(claim)
        try:
            granted = wait_for_grant(client, claim, quiet=quiet)
        except InterruptedWaitError as interrupted:
            sys.exit(128 + interrupted.number)
    _print(granted, output)
    unblock_signals(blocked)  # from here on its caller knows what it holds


def _anywhere(claim: PoolClaim) -> PoolClaim:
    from penstock.node.rpc.pool_claim import ANY_NODE

    return dataclasses.replace(claim, node=ANY_NODE)


def _print(granted: AcquireMessage, output: Output) -> None:
    one = granted.application
    if output is not Output.table:
        from penstock.cli.render.output import print_data
        from penstock.cli.render.pool_data import application_data

        print_data({**application_data(one), "environment": dict(granted.environment)}, output)
        return
    from penstock.cli.render.pool_table import part_table, printed, runs_text
    from penstock.cli.render.table import console

    print(f"application {one.name}: {one.blocks} blocks ({runs_text(one.runs)})")
    printed(console(), [part_table(one)])
    print(f"give them back with: penstock pool release {one.name}")
