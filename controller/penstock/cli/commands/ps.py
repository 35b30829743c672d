"""`penstock ps`: list tenants once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.cli.options import Output, OutputFormat, StateDir

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.node.supervision.tenant_report import Row

WINDOW_S = 0.5  # rates need two samples


def ps(output: OutputFormat = Output.table, state_dir: StateDir = None) -> None:
    """List tenants with their quota, and their usage as counted by the shim and by the device."""
    rows = _rows_by_agent(state_dir)
    if rows is None:
        rows = _rows_by_files(state_dir)
    if output is Output.table:
        from penstock.cli.render.foreign import foreign_of_agent
        from penstock.cli.render.table import console, tenant_table

        if rows:
            screen = console()
            screen.print(tenant_table(rows, width=screen.width))
        else:
            print("no tenants")
        for line in foreign_of_agent(state_dir):
            console().print(line, style="yellow", markup=False, highlight=False)
        return
    from penstock.cli.render.output import print_data

    print_data([row.as_dict() for row in rows], output)


def _rows_by_agent(state_dir: Path | None) -> list[Row] | None:
    """Tenants of another user's agent, whose files this user cannot read; None if there is none.

    Raises:
        PenstockError: the agent does not respond.
    """
    from penstock.cli.by_agent import agent_of_another

    agent = agent_of_another(state_dir)
    if agent is None:
        return None
    from penstock.cli.render.feed import AgentFeed

    feed = AgentFeed(agent, lambda: None, WINDOW_S)
    try:
        return [line.row for line in feed.picture().tenants]
    finally:
        feed.close()


def _rows_by_files(state_dir: Path | None) -> list[Row]:
    from penstock.node.supervision.tenant_report import Reporter
    from penstock.node.tenants.state import State
    from penstock.node.tenants.tenant import collect_if_writable

    state = State.read(state_dir)
    collect_if_writable(state)
    reporter = Reporter(state)
    rows = reporter.rows()
    if rows:
        time.sleep(WINDOW_S)
        rows = reporter.rows()
    return rows
