"""`penstock bench`: run all benchmarks on this machine, or those of one kind."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import Output, OutputFormat, finite
from penstock.cli.say import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType
    from typing import NoReturn

    from penstock.bench.quota import Launch

app = typer.Typer(
    help="Measure the shim's cost and accuracy. Without a sub-command, run all benchmarks."
)

Profile = Annotated[str, typer.Option(metavar="PROFILE", help="Simulated device.")]
RowSeconds = Annotated[
    float, typer.Option(min=2, max=86400, callback=finite, help="How long each row is measured.")
]
MOST_SEEDS = 1000
Rounds = Annotated[int, typer.Option(min=1, help="How many times each arm runs.")]


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
    from penstock.bench.stage import StageError

    def tell(what: str) -> None:
        if sys.stderr.isatty():
            say(what)

    try:
        report = run(simulate=simulate, seconds=seconds, long_seconds=long_seconds, say=tell)
    except StageError as error:
        _fail(error)
    if output is not Output.table:
        from penstock.cli.render.output import print_data

        print_data(dataclasses.asdict(report), output)
        return
    print(", ".join(str(fact) for fact in dataclasses.astuple(report.machine)))
    for line in _markdown([dataclasses.asdict(figure) for figure in report.figures]):
        print(line)


def _markdown(rows: Sequence[dict[str, object]]) -> Iterator[str]:
    """The rows as a Markdown table, readable in a terminal and usable unchanged on a page."""
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
    rounds: Rounds = 11,
    calls: Annotated[
        int, typer.Option(min=100, help="Timed calls of each kind per round.")
    ] = 20_000,
) -> None:
    """Measure nanoseconds added per launch and allocation, against a run without the shim."""
    from penstock.bench.launch import run

    _measure(
        run,
        "round",
        output,
        simulate=None if simulate == "none" else simulate,
        rounds=rounds,
        calls=calls,
    )


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
    seconds: RowSeconds = 5,
) -> None:
    """Measure the quota's error in points over 1 s windows, by the simulated device's record."""
    from penstock.bench.quota import run

    _measure(
        run,
        "row",
        output,
        simulate=simulate,
        quotas=_numbers(quotas, "--quotas"),
        kernels_us=_numbers(kernels_us, "--kernels-us"),
        launches=_launches(launches),
        processes=[int(number) for number in _numbers(processes, "--processes")],
        seconds=seconds,
    )


@app.command()
def turns(
    output: OutputFormat = Output.table,
    simulate: Profile = "h200",
    seconds: RowSeconds = 5,
) -> None:
    """Measure shares with and without time slices for two to eight tenants with mixed workloads."""
    from penstock.bench.time_slices import run

    _measure(run, "row", output, simulate=simulate, seconds=seconds)


@app.command()
def singly(
    output: OutputFormat = Output.table,
    simulate: Profile = "h200",
    rounds: Rounds = 7,
) -> None:
    """Measure nanoseconds added to a launch on an idle stream and in decode-like loops."""
    from penstock.bench.singly import run

    _measure(run, "pattern", output, simulate=simulate, rounds=rounds)


@app.command()
def stays(
    output: OutputFormat = Output.table,
    simulate: Profile = "h200",
    rounds: Rounds = 3,
    seconds: Annotated[
        float,
        typer.Option(
            min=0.1, max=3600, callback=finite, help="The longest a process may create grids."
        ),
    ] = 15,
) -> None:
    """Measure how much a launch slows down after a million grids, unloaded modules and shares."""
    from penstock.bench.stays import run

    _measure(run, "row", output, simulate=simulate, rounds=rounds, seconds=seconds)


@app.command()
def collectives(
    output: OutputFormat = Output.table,
    simulate: Profile = "h200",
    seconds: Annotated[
        float,
        typer.Option(min=0.2, max=3600, callback=finite, help="Target length of a measurement."),
    ] = 1.2,
) -> None:
    """Measure the speed of synchronising ranks on 2 to 8 devices against what the quota allows."""
    from penstock.bench.collectives import run

    _measure(run, "cell", output, simulate=simulate, seconds=seconds)


@app.command()
def starved(
    output: OutputFormat = Output.table,
    simulate: Profile = "h200",
    loops: Annotated[int, typer.Option(min=0, max=256, help="Number of busy loops.")] = 16,
    seconds: RowSeconds = 4,
) -> None:
    """Measure the quota's error while busy loops take the program's two processors."""
    from penstock.bench.starved import run

    _measure(run, "row", output, simulate=simulate, loops=loops, seconds=seconds)


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

    _measure(run, "row", output, tenants=tenants, processes=processes, containers=containers)


@app.command()
def pool(
    output: OutputFormat = Output.table,
    nodes: Annotated[int, typer.Option(min=1, max=100_000, help="Nodes of 100 blocks.")] = 1000,
    operations: Annotated[
        int, typer.Option(min=1000, max=100_000_000, help="How often applications come or end.")
    ] = 100_000,
    used: Annotated[
        float, typer.Option(min=1, max=99, help="How full the pool is kept, in percent.")
    ] = 90,
) -> None:
    """Measure the compute pool's decisions: time, memory, contiguity with and without moves."""
    from penstock.bench.pool import run

    _measure(run, "pool", output, nodes=nodes, operations=operations, used=used / 100)


@app.command()
def openb(
    trace: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder with the trace's CSV files (openb_*.csv).")
    ],
    output: OutputFormat = Output.table,
    lists: Annotated[
        str | None, typer.Option(help="Lists of Pods, comma-separated; without it, all six.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds: 42-51, or 42,43.")] = "42-51",
    policies: Annotated[
        str | None,
        typer.Option(help="Policies, comma-separated; with +migration one may also move Pods."),
    ] = None,
) -> None:
    """Measure how much of a cluster's GPUs placement policies allocate, on Alibaba's openb trace.

    The trace is cluster-trace-gpu-v2023 of github.com/alibaba/clusterdata. The protocol and the
    published figures are those of the FGD paper (USENIX ATC 2023).
    """
    results = _openb_results()
    runs = results.run_all(
        trace,
        lists=_words(lists, results.LISTS, "--lists"),
        seeds=_seeds(seeds),
        policies=_words(policies, results.NAMES, "--policies", results.DEFAULT_POLICIES),
        progress=_progress("run"),
    )
    if output is not Output.table:
        from penstock.cli.render.output import print_data

        print_data(results.report(runs), output)
        return
    from penstock.cli.render.table import NOT_KNOWN, console, plain_table

    rows = [dataclasses.asdict(row) for row in results.summarize(runs)]
    known = [{k: NOT_KNOWN if v is None else v for k, v in row.items()} for row in rows]
    console().print(plain_table(known))
    print(f"GPU allocated, percent of capacity; published: {results.PUBLISHED_IN}")


def _openb_results() -> ModuleType:
    """The benchmark's module. Raises PenstockError without NumPy."""
    try:
        from penstock.bench.openb import results
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        from penstock.model import PenstockError

        raise PenstockError(
            "penstock bench openb needs NumPy", "", "install it: pip install 'penstock[bench]'"
        ) from error
    return results


def _words(
    text: str | None, known: Sequence[str], option: str, default: Sequence[str] = ()
) -> Sequence[str]:
    """The words of a comma-separated option; without it `default`, or all that are known."""
    from penstock.model import PenstockError

    if text is None:
        return default or known
    words = list(dict.fromkeys(text.split(",")))
    if unknown := [word for word in words if word not in known]:
        raise PenstockError(
            f"invalid value {text!r} for {option}",
            f"there is no {unknown[0]!r}",
            f"use {', '.join(known)}",
        )
    return words


def _seeds(text: str) -> list[int]:
    from penstock.model import PenstockError

    first, dash, last = text.partition("-")
    parts = [first, last] if dash else text.split(",")
    if all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        numbers = [int(part) for part in parts]
        seeds = range(numbers[0], numbers[-1] + 1) if dash else dict.fromkeys(numbers)
        if 0 < len(seeds) <= MOST_SEEDS:
            return list(seeds)
    raise PenstockError(
        f"invalid value {text!r} for --seeds",
        f"it must be a range or a list of at most {MOST_SEEDS} whole numbers",
        "for example --seeds 42-51",
    )


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
            f"write it like {option} 10,30",
        )
    return numbers


def _launches(text: str) -> list[Launch]:
    from penstock.model import PenstockError

    known: dict[str, Launch] = {"plain": "plain", "graph": "graph"}
    words = text.split(",")
    if unknown := [word for word in words if word not in known]:
        raise PenstockError(
            f"unknown kind of launch {unknown[0]!r}",
            "only plain and graph exist",
            "use one of them",
        )
    return [known[word] for word in words]


def _progress(what: str) -> Callable[[int, int], None]:
    """Prints progress on standard error if standard error is a terminal."""

    def show(done: int, total: int) -> None:
        if sys.stderr.isatty():
            end = "\n" if done == total else "\r"
            print(f"{what} {done} of {total}", end=end, file=sys.stderr, flush=True)

    return show


def _fail(error: Exception) -> NoReturn:
    say(error)
    raise SystemExit(1)


def _measure(
    run: Callable[..., Sequence[object]], unit: str, output: Output, **options: object
) -> None:
    """Runs one benchmark and prints its rows; `unit` names the items that its progress counts."""
    from penstock.bench.stage import StageError

    try:
        rows = run(progress=_progress(unit), **options)
    except StageError as error:
        _fail(error)
    _print_rows(rows, output)


def _print_rows(rows: Sequence[object], output: Output) -> None:
    """Prints `rows`, which are dataclasses; their fields are the columns."""
    from penstock.cli.render.output import print_data

    plain = [dataclasses.asdict(row) for row in rows]  # type: ignore[call-overload]
    if output is not Output.table:
        print_data(plain, output)
        return
    from penstock.cli.render.table import console, plain_table

    console().print(plain_table(plain))
