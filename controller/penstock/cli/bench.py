"""`penstock bench`: run all benchmarks on this machine, or those of one kind."""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import Output, OutputFormat, finite
from penstock.cli.say import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import NoReturn

    from penstock.bench.quota import Launch

app = typer.Typer(
    help="Measure the shim's cost and accuracy; without a sub-command, run all benchmarks."
)

Profile = Annotated[str, typer.Option(metavar="PROFILE", help="Simulated device.")]


@app.callback(invoke_without_command=True)
def everything(
    context: typer.Context,
    output: OutputFormat = Output.table,
    simulate: Profile = "h200",
    seconds: Annotated[
        float,
        typer.Option(min=2, max=3600, callback=finite, help="How long each quota is measured."),
    ] = 5,
    long_seconds: Annotated[
        float,
        typer.Option(min=2, max=3600, callback=finite, help="How long the bias is measured."),
    ] = 60,
) -> None:
    """Run all benchmarks (about twenty minutes); a sub-command runs those of one kind."""
    if context.invoked_subcommand:
        return
    from penstock.bench.figures import run
    from penstock.bench.launch import BenchError
    from penstock.bench.stage import StageError

    def tell(what: str) -> None:
        if sys.stderr.isatty():
            say(what)

    try:
        report = run(simulate=simulate, seconds=seconds, long_seconds=long_seconds, say=tell)
    except (BenchError, StageError) as error:
        _fail(error)
    if output is not Output.table:
        from penstock.cli.output import print_data

        print_data(dataclasses.asdict(report), output)
        return
    print(", ".join(str(fact) for fact in dataclasses.astuple(report.machine)))
    for line in _markdown([dataclasses.asdict(figure) for figure in report.figures]):
        print(line)


def _markdown(rows: Sequence[dict[str, object]]) -> Iterator[str]:
    """The rows as a Markdown table: readable in a terminal, and usable on a page unchanged."""
    words = {True: "yes", False: "**no**"}
    yield "| " + " | ".join(rows[0]) + " |"
    yield "|" + " --- |" * len(rows[0])
    for row in rows:
        cells = (words[v] if isinstance(v, bool) else str(v) for v in row.values())
        yield "| " + " | ".join(cells) + " |"


@app.command()
def launch(
    output: OutputFormat = Output.table,
    simulate: Annotated[
        str, typer.Option(metavar="PROFILE", help="Simulated device; 'none': the real device 0.")
    ] = "h200",
    rounds: Annotated[int, typer.Option(min=1, help="How many times each arm runs.")] = 11,
    calls: Annotated[
        int, typer.Option(min=100, help="Timed calls of each kind per round.")
    ] = 20_000,
) -> None:
    """Measure nanoseconds added per launch and allocation, against a run without the shim."""
    from penstock.bench.launch import BenchError, run

    try:
        rows = run(
            simulate=None if simulate == "none" else simulate,
            rounds=rounds,
            calls=calls,
            progress=_progress("round"),
        )
    except BenchError as error:
        _fail(error)
    _print_rows(rows, output)


@app.command()
def quota(
    output: OutputFormat = Output.table,
    simulate: Profile = "h200",
    quotas: Annotated[
        str, typer.Option(help="Quotas in percent, comma-separated.")
    ] = "10,30,50,70,90",
    kernels_us: Annotated[
        str, typer.Option(help="Kernel lengths in us, comma-separated.")
    ] = "200,2000",
    launches: Annotated[str, typer.Option(help="Kinds of launch: plain,graph.")] = "plain,graph",
    processes: Annotated[
        str, typer.Option(help="Processes of the tenant, comma-separated.")
    ] = "1,4",
    seconds: Annotated[
        float,
        typer.Option(min=2, max=86400, callback=finite, help="How long each row is measured."),
    ] = 5,
) -> None:
    """Measure the quota's error in points over 1 s windows, by the simulated device's record."""
    from penstock.bench.quota import run
    from penstock.bench.stage import StageError

    try:
        rows = run(
            simulate=simulate,
            quotas=_numbers(quotas, "--quotas"),
            kernels_us=_numbers(kernels_us, "--kernels-us"),
            launches=_launches(launches),
            processes=[int(number) for number in _numbers(processes, "--processes")],
            seconds=seconds,
            progress=_progress("row"),
        )
    except StageError as error:
        _fail(error)
    _print_rows(rows, output)


@app.command()
def turns(
    output: OutputFormat = Output.table,
    simulate: Profile = "h200",
    seconds: Annotated[
        float,
        typer.Option(min=2, max=86400, callback=finite, help="How long each row is measured."),
    ] = 5,
) -> None:
    """Measure shares with and without time slices: two to eight tenants, even and uneven work."""
    from penstock.bench.stage import StageError
    from penstock.bench.turns import run

    try:
        rows = run(simulate=simulate, seconds=seconds, progress=_progress("row"))
    except StageError as error:
        _fail(error)
    _print_rows(rows, output)


@app.command()
def singly(
    output: OutputFormat = Output.table,
    simulate: Profile = "h200",
    rounds: Annotated[int, typer.Option(min=1, help="How many times each arm runs.")] = 7,
) -> None:
    """Measure nanoseconds added to a launch on an idle stream and in decode-like loops."""
    from penstock.bench.singly import run
    from penstock.bench.stage import StageError

    try:
        rows = run(simulate=simulate, rounds=rounds, progress=_progress("pattern"))
    except StageError as error:
        _fail(error)
    _print_rows(rows, output)


@app.command()
def stays(
    output: OutputFormat = Output.table,
    simulate: Profile = "h200",
    rounds: Annotated[int, typer.Option(min=1, help="How many times each arm runs.")] = 3,
    seconds: Annotated[
        float,
        typer.Option(
            min=0.1, max=3600, callback=finite, help="The longest a process may create grids."
        ),
    ] = 15,
) -> None:
    """Measure a launch after a million grids, unloaded modules and shares, against one before."""
    from penstock.bench.stage import StageError
    from penstock.bench.stays import run

    try:
        rows = run(simulate=simulate, rounds=rounds, seconds=seconds, progress=_progress("row"))
    except StageError as error:
        _fail(error)
    _print_rows(rows, output)


@app.command()
def collectives(
    output: OutputFormat = Output.table,
    simulate: Profile = "h200",
    seconds: Annotated[
        float,
        typer.Option(min=0.2, max=3600, callback=finite, help="Target length of a measurement."),
    ] = 1.2,
) -> None:
    """Measure ranks that synchronise, on 2 to 8 devices, as a share of what the quota allows."""
    from penstock.bench.collectives import run
    from penstock.bench.stage import StageError

    try:
        rows = run(simulate=simulate, seconds=seconds, progress=_progress("cell"))
    except StageError as error:
        _fail(error)
    _print_rows(rows, output)


@app.command()
def starved(
    output: OutputFormat = Output.table,
    simulate: Profile = "h200",
    loops: Annotated[int, typer.Option(min=0, max=256, help="Number of busy loops.")] = 16,
    seconds: Annotated[
        float,
        typer.Option(min=2, max=3600, callback=finite, help="How long each row is measured."),
    ] = 4,
) -> None:
    """Measure the quota's error while busy loops take the program's two processors."""
    from penstock.bench.stage import StageError
    from penstock.bench.starved import run

    try:
        rows = run(simulate=simulate, loops=loops, seconds=seconds, progress=_progress("row"))
    except StageError as error:
        _fail(error)
    _print_rows(rows, output)


@app.command()
def node(
    output: OutputFormat = Output.table,
    tenants: Annotated[int, typer.Option(min=1, max=700, help="Number of tenants.")] = 500,
    processes: Annotated[
        int, typer.Option(min=0, max=4000, help="Number of their processes in total.")
    ] = 2000,
    containers: Annotated[
        int,
        typer.Option(
            min=0, max=100, help="How many of the tenants are containers (needs podman and root)."
        ),
    ] = 0,
) -> None:
    """Measure an agent with many tenants: its cost, and how fast it grants and restarts."""
    from penstock.bench.node import run
    from penstock.bench.stage import StageError

    try:
        rows = run(
            tenants=tenants,
            processes=processes,
            containers=containers,
            progress=_progress("row"),
        )
    except StageError as error:
        _fail(error)
    _print_rows(rows, output)


def _numbers(text: str, option: str) -> list[float]:
    from penstock.model import PenstockError

    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 < number < math.inf for number in numbers):
        raise PenstockError(
            f"invalid value {text!r} for {option}",
            "it must be a list of numbers above 0",
            f"for example {option} 10,30",
        )
    return numbers


def _launches(text: str) -> list[Launch]:
    from penstock.model import PenstockError

    known: dict[str, Launch] = {"plain": "plain", "graph": "graph"}
    words = text.split(",")
    if unknown := [word for word in words if word not in known]:
        raise PenstockError(f"unknown kind of launch {unknown[0]!r}", "", "use plain or graph")
    return [known[word] for word in words]


def _progress(what: str) -> Callable[[int, int], None]:
    """Prints progress on standard error if that is a terminal."""

    def show(done: int, total: int) -> None:
        if sys.stderr.isatty():
            end = "\n" if done == total else "\r"
            print(f"{what} {done} of {total}", end=end, file=sys.stderr, flush=True)

    return show


def _fail(error: Exception) -> NoReturn:
    say(error)
    raise SystemExit(1)


def _print_rows(rows: Sequence[object], output: Output) -> None:
    """Rows are dataclasses: their fields are the columns."""
    from penstock.cli.output import print_data

    plain = [dataclasses.asdict(row) for row in rows]  # type: ignore[call-overload]
    if output is not Output.table:
        print_data(plain, output)
        return
    from penstock.cli.table import console, plain_table

    console().print(plain_table(plain))
