"""`penstock shim coverage`: lists driver functions a command uses that the shim does not handle."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import (
    AS_IS,
    Devices,
    ModeChoice,
    Output,
    OutputFormat,
    PolicyFile,
    Simulate,
    StateDir,
    check_command,
)
from penstock.cli.request import (
    open_source,
    policy_of,
    refuse_inside_a_tenant,
    request_of,
    warn_of_obstacles,
)
from penstock.cli.say import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.node.launch.coverage import Report
    from penstock.node.tenants.tenant import Tenant

INCOMPLETE_EXIT_CODE = 3

app = typer.Typer(help="How the shim handles a program.", no_args_is_help=True)


@app.callback()
def shim() -> None:
    """How the shim handles a program."""


@app.command(context_settings=AS_IS)
def coverage(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND…", help="The command to run.")
    ],
    output: OutputFormat = Output.table,
    memory: Annotated[
        str | None, typer.Option(metavar="QUANTITY", help="Device memory (default: all free).")
    ] = None,
    cores: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="Device time (default: all free).")
    ] = None,
    device: Devices = None,
    policy: PolicyFile = None,
    simulate: Simulate = None,
    state_dir: StateDir = None,
) -> None:
    """Run a command as a tenant, then list driver functions that the shim does not handle itself.

    The list has functions that were refused, unknown functions that were forwarded, functions that
    the driver lacks, and functions that are always forwarded, each with its counts and the reason.
    Counting slows down forwarded calls.

    The table follows the command's output. With -o json or yaml, standard output holds only the
    list, and the command's output goes to standard error. The exit code is the command's, or 3 if
    the command succeeded but a function was refused or none of its processes used a device through
    the shim.
    """
    import dataclasses

    from penstock.node.admission.admit import admit
    from penstock.node.launch.child import CommandNotStartedError
    from penstock.node.launch.coverage import report
    from penstock.node.launch.run import run_tenant
    from penstock.node.tenants.state import State
    from penstock.node.tenants.tenant import has_processes

    refuse_inside_a_tenant()
    check_command(command)
    loaded = policy_of(policy, command[0]) if policy else None
    warn_of_obstacles(command[0])
    mode: ModeChoice = None
    request = request_of(
        command, memory, cores, device or [], mode, loaded, None, False, all_by_default=True
    )
    state = State.open(state_dir)
    source = open_source(state, simulate)
    admitted = admit(state, dataclasses.replace(request, record=True), source)
    for note in admitted.notes:
        say(note)
    found: list[Report] = []

    def read(tenant: Tenant) -> None:
        found.append(report(tenant.usage_page, unfinished=has_processes(tenant)))
        sys.stdout.flush()
        _print(found[0], output)
        sys.stdout.flush()

    try:
        with _output_aside(output is not Output.table) as put_back:
            code = run_tenant(state, admitted, command, source, put_back, at_end=read)
    except CommandNotStartedError as error:
        say(error)
        sys.exit(error.exit_code)
    incomplete = found[0].refused or not found[0].shim_used
    sys.exit(code or (INCOMPLETE_EXIT_CODE if incomplete else 0))


@contextmanager
def _output_aside(wanted: bool) -> Iterator[Callable[[], None]]:
    """If `wanted`, processes started in this block write their standard output to standard error.

    Yields a function that restores this process's own standard output once the command has started.
    """
    if not wanted:
        yield lambda: None
        return
    ours = os.dup(1)
    os.dup2(2, 1)
    restored = False

    def put_back() -> None:
        nonlocal restored
        if not restored:
            os.dup2(ours, 1)
            os.close(ours)
            restored = True

    try:
        yield put_back
    finally:
        put_back()


def _print(found: Report, output: Output) -> None:
    from penstock.cli.render.output import print_data
    from penstock.node.launch.coverage import NOT_SEEN

    if output is not Output.table:
        print_data(found.as_dict(), output)
        return
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from penstock.cli.render.table import console

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("NAME", overflow="fold")
    table.add_column("KIND")
    table.add_column("ASKED", justify="right")
    table.add_column("CALLS", justify="right")
    table.add_column("WHY", overflow="fold")
    shown = [one for one in found.names if one.kind != "forwarded" or one.calls]
    for one in shown:
        style = "red" if one.kind == "refused" else None
        table.add_row(
            escape(one.name),
            one.kind,
            str(one.requests),
            str(one.calls),
            escape(one.why),
            style=style,
        )
    screen = console()
    if shown:
        screen.print(table)
    elif not found.shim_used:
        print(
            "no process of the command used a device through the shim: it used none, or it ran "
            "without the shim (static, musl, LD_PRELOAD unset or overwritten)"
        )
    else:
        print("the command called nothing that the shim does not handle itself")
    if more := len(found.names) - len(shown):
        print(f"{more} more were requested but never called; they are only forwarded (-o json)")
    if found.overflow:
        print(f"{found.overflow} requests and calls used names that did not fit into the table")
    if found.unfinished:
        print("the command left processes behind: their requests from now on are not listed")
    print("not seen: " + ";\n  ".join(NOT_SEEN))
