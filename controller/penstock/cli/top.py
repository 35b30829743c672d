"""`penstock top`: tenants, live."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Annotated

import typer

from penstock.cli.options import Output, StateDir, finite, one_of


def top(
    interval: Annotated[
        float,
        typer.Option(min=0.1, max=86400, callback=finite, help="Seconds between updates."),
    ] = 1.0,
    output: Annotated[
        Output,
        typer.Option(
            "--output",
            "-o",
            parser=one_of(Output),
            metavar="FORMAT",
            help="table, or json for programs.",
        ),
    ] = Output.table,
    watch: Annotated[
        bool, typer.Option("--watch", help="With -o json: a line every interval, until stopped.")
    ] = False,
    state_dir: StateDir = None,
) -> None:
    """Show tenants live, with what they use beside their quota. Ends with Ctrl-C."""
    from penstock.cli.table import console, tenant_table
    from penstock.node.report import Reporter
    from penstock.node.state import State
    from penstock.node.tenant import collect_if_writable

    state = State.read(state_dir)
    collect_if_writable(state)
    reporter = Reporter(state)
    reporter.rows()
    if output is not Output.table:
        from penstock.cli.output import print_data

        time.sleep(min(interval, 0.5))
        if not watch:
            print_data([row.as_dict() for row in reporter.rows()], output)
            return
        while True:
            print(json.dumps([row.as_dict() for row in reporter.rows()]), flush=True)
            time.sleep(interval)
    if not sys.stdout.isatty():
        time.sleep(min(interval, 0.5))
        screen = console()
        screen.print(tenant_table(reporter.rows(), width=screen.width))
        return
    from rich.live import Live

    title = "penstock top (Ctrl-C ends)"
    with (
        contextlib.suppress(KeyboardInterrupt),
        Live(console=console(), screen=True, auto_refresh=False) as live,
    ):
        while True:
            table = tenant_table(reporter.rows(), title, width=live.console.width)
            live.update(table, refresh=True)
            time.sleep(interval)
