"""`penstock demo`: three programs, one device, live table, verdict."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import finite

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.live import Live

    from penstock.bench.demo import DemoReport, Outcome
    from penstock.node.supervision.tenant_report import Row

PLAIN_EVERY_S = 5.0


def demo(
    seconds: Annotated[
        float,
        typer.Option(min=10, max=86400, callback=finite, help="How long the programs run."),
    ] = 25.0,
    simulate: Annotated[
        str | None,
        typer.Option(metavar="PROFILE", help="Use a simulated device even if there is a real one."),
    ] = None,
) -> None:
    """Run three unmodified programs on one GPU under quotas. Exit code 0 if all stay within bounds.

    Uses the real GPU if there is one, else a simulated H200.
    """
    from rich.live import Live

    from penstock.bench.demo import run
    from penstock.cli.render.table import console

    # Handle SIGTERM like Ctrl-C: end the programs and remove the folder before exiting.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    screen = console()
    screen.print(
        "Three unmodified programs share one GPU, each started by [bold]penstock run[/bold]:\n"
        "  numba       Numba-CUDA           --memory 8Gi --cores 70\n"
        "  cuda-core   cuda.core, C++       --memory 4Gi --cores 20\n"
        "  c-program   C, driver API        --memory 2Gi --cores 5, requests more memory\n"
    )
    if screen.is_terminal:
        with Live(console=screen, auto_refresh=False) as live:
            report = run(seconds=seconds, simulate=simulate, watch=_in_place(live))
    else:
        report = run(seconds=seconds, simulate=simulate, watch=_now_and_then(screen))
    _print_report(screen, report)
    sys.exit(0 if report.within_bounds else 1)


def _end(number: int, _frame: object) -> None:
    for again in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(again, signal.SIG_IGN)  # nothing may interrupt the cleanup
    sys.exit(128 + number)


def _in_place(live: Live) -> Callable[[list[Row]], None]:
    """Returns a function that updates the table in place on a terminal."""
    from penstock.cli.render.table import tenant_table

    return lambda rows: live.update(tenant_table(rows, width=live.console.width), refresh=True)


def _now_and_then(screen: Console) -> Callable[[list[Row]], None]:
    """Returns a function that prints a table every few seconds, for output without a terminal."""
    from penstock.cli.render.table import tenant_table

    due = time.monotonic() + PLAIN_EVERY_S

    def show(rows: list[Row]) -> None:
        nonlocal due
        if rows and time.monotonic() >= due:
            screen.print(tenant_table(rows, width=screen.width))
            due = time.monotonic() + PLAIN_EVERY_S

    return show


def _print_report(screen: Console, report: DemoReport) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    kind = "the simulated device's own record" if report.device.simulated else "NVML"
    screen.print(
        f"\nUsage of {report.device}, by {kind}, cores over {report.window_s:.0f} s:",
        markup=False,
    )
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("TENANT", "MEMORY PEAK/QUOTA", "CORES/QUOTA", "REFUSED", "EXIT", "VERDICT"):
        right = heading not in ("TENANT", "VERDICT")
        table.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for outcome in report.outcomes:
        table.add_row(*_cells(outcome, report.tolerance_points))
    screen.print(table)
    for outcome in report.outcomes:
        name = outcome.ended.part.name
        for fault in outcome.faults:
            screen.print(f"{name}: {fault}", markup=False, style="red")
        if outcome.faults or outcome.ended.part.over_asks:
            for line in outcome.ended.output.strip().splitlines()[-8:]:
                screen.print(f"  {name} | {line}", markup=False, highlight=False)
    words = "all within bounds" if report.within_bounds else "NOT all within bounds"
    screen.print(f"\n[bold]{words}[/bold]")
    if not report.within_bounds:
        screen.print(_advice(), markup=False)


def _advice() -> str:
    """Advice after a run that was not within bounds."""
    load, processors = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > processors:
        return (
            f"This machine is busy (load {load:.1f} on {processors} processors), which slows "
            "programs on a simulated device: try again when it is idle, or with --seconds 60."
        )
    return "Try again with --seconds 60; penstock doctor checks what a quota needs."


def _cells(outcome: Outcome, tolerance: float) -> list[str]:
    from penstock.model import format_cores, human_memory

    part = outcome.ended.part
    verdict = "[red]FAULT[/red]" if outcome.faults else "[green]ok[/green]"
    cores = "-" if outcome.cores_percent is None else f"{outcome.cores_percent:.1f}"
    bounds = f"±{tolerance:g}" if part.backlogged else f"+{tolerance:g} at most"
    return [
        part.name,
        f"{human_memory(outcome.peak_bytes)} / {human_memory(part.memory_bytes)}",
        f"{cores} / {format_cores(part.cores_permille)} {bounds}",
        str(outcome.ended.refusals),
        str(outcome.ended.exit_code),
        verdict,
    ]
