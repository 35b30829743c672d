"""`penstock ps`: tenants, once."""

from __future__ import annotations

import time

from penstock.cli.options import Output, OutputFormat, StateDir

WINDOW_S = 0.5  # rates need two looks


def ps(
    output: OutputFormat = Output.table,
    state_dir: StateDir = None,
) -> None:
    """List tenants with what they use beside their quota, by the shim and by the device."""
    from penstock.cli.by_agent import tenants_of_others_agent
    from penstock.node.report import Reporter
    from penstock.node.state import State
    from penstock.node.tenant import collect_if_writable

    others = tenants_of_others_agent(state_dir)
    if others is not None:
        from penstock.cli.output import print_data
        from penstock.cli.table import console, plain_table

        if output is Output.table:
            console().print(plain_table(others)) if others else print("no tenants")
        else:
            print_data(others, output)
        return
    state = State.read(state_dir)
    collect_if_writable(state)
    reporter = Reporter(state)
    rows = reporter.rows()
    if rows:
        time.sleep(WINDOW_S)
        rows = reporter.rows()
    if output is Output.table:
        from penstock.cli.table import console, tenant_table

        if rows:
            screen = console()
            screen.print(tenant_table(rows, width=screen.width))
        else:
            print("no tenants")
        return
    from penstock.cli.output import print_data

    print_data([row.as_dict() for row in rows], output)
