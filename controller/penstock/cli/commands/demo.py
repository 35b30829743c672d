"""`penstock demo`: three programs, one device, live table, verdict; `demo card`: three cards."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import finite

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.live import Live

    from penstock.bench.card_demo import CardDemoReport
    from penstock.bench.demo import DemoReport, Outcome
    from penstock.card.published import ProgramFigures
    from penstock.node.supervision.tenant_report import Row

PLAIN_EVERY_S = 5.0

app = typer.Typer(invoke_without_command=True)


@app.callback()
def demo(
    context: typer.Context,
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

    Uses the real GPU if there is one, else a simulated H200. penstock demo card is the demo of the
    virtual card.
    """
    if context.invoked_subcommand is None:
        _run_programs(seconds, simulate)


def _run_programs(seconds: float, simulate: str | None) -> None:
    from rich.live import Live

    from penstock.bench.demo import run
    from penstock.cli.render.table import console

    _clean_up_on_signals()
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


@app.command("card")
def card(
    steps: Annotated[
        int, typer.Option(min=10, max=10_000, help="Training steps on each device.")
    ] = 60,
    trace: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the trace for Perfetto is written.")
    ] = Path("penstock-card-trace.json"),
) -> None:
    """Train a small network on three unlike cards as one PyTorch device, and on the CPU.

    The cards are processes on this machine, of speeds 1, 2 and 4: the demo shows what the virtual
    card does, and nothing of its speed. It needs torch: pip install 'penstock[torch]'. Exit code 0:
    the losses are those of the CPU; 1: they are not; 2: torch is missing, or the program failed.
    """
    from penstock.bench.card_demo import CARDS, check_torch, run
    from penstock.cli.render.table import console

    check_torch()
    _clean_up_on_signals()
    screen = console()
    screen.print(
        "One PyTorch program trains a small network, first on the CPU and then on "
        f'torch.device("penstock"),\nwhich is made of three unlike cards: PENSTOCK_CARD={CARDS}\n',
        markup=False, highlight=False,
    )  # fmt: skip
    report = run(steps, trace, _figures_printed(screen))
    _print_card_report(screen, report)
    sys.exit(0 if report.is_equal else 1)


def _figures_printed(screen: Console) -> Callable[[ProgramFigures], None]:
    """Returns a function that shows now and then what `penstock card top` shows."""
    from penstock.cli.render.card_screen import card_screen

    due = time.monotonic()

    def show(figures: ProgramFigures) -> None:
        nonlocal due
        if figures.operations_per_s and time.monotonic() >= due:
            screen.print(f"$ penstock card top --once {figures.pid}", style="dim")
            screen.print(card_screen([figures], [], width=min(screen.width, 140)))
            screen.print()
            due = time.monotonic() + PLAIN_EVERY_S

    return show


def _print_card_report(screen: Console, report: CardDemoReport) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("STEP", "LOSS ON THE CPU", "ON THREE CARDS", "DIFFERENCE"):
        table.add_column(heading, justify="right")
    for one in report.steps:
        values = (f"{value:.6f}" for value in (one.cpu, one.cards))
        table.add_row(str(one.step), *values, f"{abs(one.cpu - one.cards):.1e}")
    screen.print(table)
    if report.figures is not None:
        for card in report.figures.cards:
            screen.print(
                f"card {card.name}: {100 * card.share:.0f} % of the rows, busy for "
                f"{card.busy_s:.1f} s, waited {card.cards_s:.1f} s for other cards",
                markup=False, highlight=False,
            )  # fmt: skip
    screen.print(
        f"\n{report.trace}: {report.events} events; open it at https://ui.perfetto.dev",
        markup=False, highlight=False,
    )  # fmt: skip
    words = "the losses are" if report.is_equal else "the losses are NOT"
    screen.print(f"[bold]{words} those of the CPU[/bold]")


def _clean_up_on_signals() -> None:
    """Handles SIGTERM like Ctrl-C: the programs are ended and the folder removed before."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)


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
