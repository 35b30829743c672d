"""`penstock train`: training jobs on unlike cards, of programs that were written for one device."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import AS_IS, Output, OutputFormat, check_command, one_of
from penstock.cli.pool_arguments import CardKind, PoolMemory, Priority, Wait
from penstock.cli.say import say

if TYPE_CHECKING:
    from penstock.training.document import TrainJob
    from penstock.training.run import Run, State

LOOKS_S = 0.1
STARTS_WITHIN_S = 30.0
MOST_EVENTS = 20  # of a run, in its status
NO_TIME = "-"
GRAPHS = ("table", "json", "dot")  # how a graph is printed

app = typer.Typer(
    help="Train programs that were written for one device on unlike cards.", no_args_is_help=True
)

RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="PROJECT/RUN as penstock train ls lists it, or RUN.")
]


@app.callback()
def _group() -> None:
    """Train programs that were written for one device on unlike cards."""


@app.command(context_settings=AS_IS)
def run(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND…", help="The program to run.")
    ],
    cards: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="Cards of this machine: cuda:0,cuda:1 or cpu,cpu; of others: tcp:HOST:PORT (see "
            "penstock card serve). Speeds are measured; write cpu=1,cpu=2 to say them.",
        ),
    ] = "",
    spares: Annotated[
        str,
        typer.Option(
            metavar="LIST", help="Cards that take the places of --cards that do not come back."
        ),
    ] = "",
    credentials: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="FOLDER/program, for cards at tcp:HOST:PORT."),
    ] = None,
    tflops: Annotated[
        str, typer.Option(metavar="N", help="Instead: claim N TFLOPS of the compute pool.")
    ] = "",
    split: Annotated[
        str,
        typer.Option(
            parser=one_of(["weighted", "even"]),
            metavar="weighted|even",
            help="How a batch is split over --cards: by their speed, or evenly.",
        ),
    ] = "weighted",
    restarts: Annotated[
        int, typer.Option(min=0, max=1000, help="How often a program that failed is run again.")
    ] = 0,
    webhook: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="An address that gets a POST when a card is lost or the program fails.",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where the run serves metrics to Prometheus."),
    ] = None,
    grace: Annotated[
        str,
        typer.Option(metavar="TIME", help="How long the program may take to end when told to."),
    ] = "10s",
    project: Annotated[str, typer.Option(metavar="NAME", help="Project of the run.")] = "default",
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the run (default: run-NUMBER).")
    ] = None,
    memory: PoolMemory = None,
    kind: CardKind = "",
    priority: Priority = "0",
    wait: Wait = None,
    failures: Annotated[int | None, typer.Option(hidden=True, min=0)] = None,
) -> None:
    """Run a training program on all its cards, and keep what it printed as a run.

    The program may be any that trains on one GPU: what it calls "cuda" is all the cards together. A
    card that is lost comes back, and the program goes on. The exit code is the program's, or 128+n
    if signal n ended it; a program that was told to stop has not succeeded, so that it is not 0.
    """
    check_command(command)
    pool = {"tflops": tflops, "memory": memory, "kind": kind, "priority": priority, "wait": wait}
    spec = {"command": command, "spares": _listed(spares), "split": split, "restarts": restarts,
            "webhook": webhook, "metrics": metrics, "grace": grace,
            "credentials": str(credentials.absolute()) if credentials else None}  # fmt: skip
    job = _job(spec, cards, pool if tflops else None, {"project": project, "name": name})
    _refuse_without_pool(tflops, memory, kind, priority, wait)
    made = _created(job)
    say(f"run {made} (penstock train status {made})")
    sys.exit(_shell_code(_supervised(made, failures)))


def _refuse_without_pool(
    tflops: str, memory: object, kind: str, priority: str, wait: object
) -> None:
    """Raises `PenstockError` for options that are of a claim."""
    from penstock.model import PenstockError

    given = {"--memory": memory, "--kind": kind, "--wait": wait,
             "--priority": "" if priority == "0" else priority}  # fmt: skip
    names = [option for option, value in given.items() if value]
    if names and not tflops:
        raise PenstockError(
            f"{' and '.join(names)} cannot be given without --tflops",
            "it says what the pool gives",
            "add --tflops N instead of --cards, or leave it out",
        )  # fmt: skip


def _job(
    spec: dict[str, Any], cards: str, pool: dict[str, Any] | None, metadata: dict[str, Any]
) -> TrainJob:
    """The job that options describe. Raises `PenstockError`."""
    import yaml

    from penstock.model import PenstockError
    from penstock.policy.document import format_path, parse
    from penstock.training.document import API_VERSION, KIND, JobError, checked

    if bool(cards) == (pool is not None):
        raise PenstockError(
            "it is not clear on what the program trains",
            f"{'both' if cards else 'neither'} --cards {'and' if cards else 'nor'} --tflops "
            f"{'are' if cards else 'is'} given",
            "write --cards cuda:0,cuda:1 for cards of this machine, or --tflops 50 for a pool's",
        )  # fmt: skip
    spec |= {
        "folder": str(Path.cwd()), "pool": pool,
        "cards": _listed(cards) or None,
    }  # fmt: skip
    value = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
    try:
        return checked(parse(yaml.safe_dump(value), "the command line")[0], "the command line")
    except JobError as error:
        problems = [f"{format_path(one.path[1:])}: {one.message}" for one in error.problems]
        text = "; ".join(one.removeprefix(": ") for one in problems)
        raise PenstockError("cannot train", text, "see penstock train run --help") from None


def _listed(cards: str) -> list[str]:
    return [one.strip() for one in cards.split(",")] if cards else []


def _created(job: TrainJob) -> Run:
    """A new run of a job that can be started here. Raises `PenstockError`."""
    from penstock.training.run import create

    if job.spec.metrics is not None:
        from penstock.training.metrics import check_address

        check_address(job.spec.metrics)
    return create(job)


def _supervised(run: Run, failures: int | None) -> State:
    """Runs a program in the foreground, and prints what it prints."""
    from penstock.training.supervisor import Supervisor

    supervisor = Supervisor(run, failures)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: supervisor.stop())
    lock = run.lock()
    is_over = threading.Event()
    printer = threading.Thread(target=_print_output, args=(run, is_over.is_set), daemon=True)
    printer.start()
    try:
        state = supervisor.run()
    finally:
        is_over.set()
        printer.join()
        os.close(lock)
    if state.reason:
        say(f"run {run} {state.phase}: {state.reason}")
    return state


def _print_output(run: Run, is_over: Callable[[], bool]) -> None:
    """Copies a run's log to standard output, until it is over."""
    with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
        was_over, at = False, 0
        while True:
            was_over = is_over()
            with contextlib.suppress(FileNotFoundError), run.output.open("rb") as log:
                log.seek(at)
                while piece := log.read(1 << 16):
                    at += len(piece)
                    sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
            if was_over:
                return
            time.sleep(LOOKS_S)


def _shell_code(state: State) -> int:
    code = state.code if state.code is not None else 1
    if state.phase == "stopped" and code == 0:
        return 128 + signal.SIGTERM
    return 128 - code if code < 0 else code


@app.command()
def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A TrainJob as YAML.")],
) -> None:
    """Start the job of a document in the background, and print the name of its run.

    A document that is not valid is refused with the line of each problem.
    """
    from penstock.model import PenstockError
    from penstock.training.document import load_job

    run = _created(load_job(file))
    with (run.folder / "supervisor.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "train", "supervise", str(run)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/",
        )  # fmt: skip
    deadline_s = time.monotonic() + STARTS_WITHIN_S
    while not run.is_supervised() and process.poll() is None and time.monotonic() < deadline_s:
        time.sleep(LOOKS_S)
    if process.poll() and not run.events():
        said = (run.folder / "supervisor.log").read_text(errors="replace").strip()
        raise PenstockError(f"run {run} was not started", said.rpartition("\n")[2] or "it ended",
                            "see its folder " + str(run.folder))  # fmt: skip
    print(run)


@app.command()
def render(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A TrainJob as YAML.")],
    days: Annotated[
        int, typer.Option(min=1, max=3650, help="How long its credentials are valid.")
    ] = 90,
) -> None:
    """Print the Kubernetes objects of a job, for kubectl apply -f -.

    A Job has the program's Pod, and one for each group has the Pods of its cards. New credentials,
    by which program and cards know each other, are among the objects: do not keep the output.
    """
    import tempfile

    import yaml

    from penstock.card.credentials import write
    from penstock.training.document import job_name, load_kubernetes_job
    from penstock.training.manifests import objects, selector

    job = load_kubernetes_job(file)
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        write(Path(folder) / "credentials", days)
        made = objects(job, Path(folder) / "credentials")
    print(yaml.safe_dump_all(made, sort_keys=False), end="")
    where = job.spec.kubernetes and job.spec.kubernetes.namespace
    kubectl = f"kubectl -n {where}" if where else "kubectl"
    say(f"what the program prints: {kubectl} logs -f job/{job_name(job)}")
    say(f"to remove all of it: {kubectl} delete jobs,services,secrets -l {selector(job)}")


@app.command(hidden=True)
def supervise(name: RunName) -> None:
    """Supervise a run that was submitted; penstock train submit starts this."""
    from penstock.training.run import find
    from penstock.training.supervisor import Supervisor

    run = find(name)
    supervisor = Supervisor(run)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: supervisor.stop())
    run.lock()
    supervisor.run()


@app.command("ls")
def list_runs(
    project: Annotated[
        str | None, typer.Argument(metavar="[PROJECT]", help="Runs of this project alone.")
    ] = None,
    output: OutputFormat = Output.table,
) -> None:
    """List runs, the oldest first."""
    from penstock.training.run import runs

    rows = [_row(one) for one in runs(project)]
    if output is not Output.table:
        from penstock.cli.render.output import print_data

        print_data(rows, output)
    elif not rows:
        print("no runs")
    else:
        from penstock.cli.render.table import console, plain_table

        shown = [{"RUN": row["run"], "PHASE": row["phase"], "ATTEMPT": row["attempt"],
                  "BEGAN": _clock(row["began_s"]), "FOR": _span(row), "COMMAND": row["command"]}
                 for row in rows]  # fmt: skip
        console().print(plain_table(shown))


def _row(run: Run) -> dict[str, Any]:
    from penstock.model import PenstockError

    try:
        state, command = run.state(), " ".join(run.job().spec.command)
    except PenstockError as error:
        return {"run": str(run), "phase": "unreadable", "attempt": 0, "pid": 0, "code": None,
                "reason": str(error), "began_s": 0.0, "ended_s": 0.0, "command": ""}  # fmt: skip
    return {"run": str(run), "phase": state.phase, "attempt": state.attempt, "pid": state.pid,
            "code": state.code, "reason": state.reason, "began_s": state.began_s,
            "ended_s": state.ended_s, "command": command}  # fmt: skip


def _clock(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s)) if at_s else NO_TIME


def _span(row: dict[str, Any]) -> str:
    if not row["began_s"]:
        return NO_TIME
    seconds = int((row["ended_s"] or time.time()) - row["began_s"])
    hours, rest = divmod(max(seconds, 0), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"


@app.command()
def status(name: RunName, output: OutputFormat = Output.table) -> None:
    """Show how a run is: its phase, its cards with their shares of the work, what happened."""
    from penstock.training.figures import programs_of
    from penstock.training.run import find

    run = find(name)
    row = _row(run)
    programs = programs_of(row["pid"])
    events = run.events()[-MOST_EVENTS:]
    if output is not Output.table:
        from dataclasses import asdict

        from penstock.cli.render.output import print_data

        told = {
            "programs": [asdict(one) for one in programs],
            "events": [asdict(one) for one in events],
        }
        print_data({**row, **told}, output)
        return
    reason = f" ({row['reason']})" if row["reason"] else ""
    print(f"{row['run']}  {row['phase']}{reason}")
    print(f"{row['command']}\nattempt {row['attempt']}, for {_span(row)}, output in {run.output}")
    if (kept := run.folder / "outputs").exists():
        print(f"outputs in {kept}")
    if programs:
        from penstock.cli.render.card_screen import card_screen
        from penstock.cli.render.table import console

        page = console()
        page.print(card_screen(programs, [], width=page.width))
    for event in events:
        print(f"{_clock(event.time)}  {event.event}  {event.text}")


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="RUN|FILE", help="A run, or a TrainJob as YAML.")],
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", parser=one_of(GRAPHS), metavar="FORMAT", help="table, json or dot."
        ),
    ] = GRAPHS[0],
) -> None:
    """Show a job as a graph: its steps, its program, its cards and what each of them is told.

    Of a file, what would be; of a run, what is now.
    """
    from penstock.training.document import load_job
    from penstock.training.figures import programs_of
    from penstock.training.graph import graph_of_job, graph_of_run
    from penstock.training.run import find

    if Path(name).is_file():
        graph = graph_of_job(load_job(Path(name)))
    else:
        run = find(name)
        state = run.state()
        graph = graph_of_run(run, state, programs_of(state.pid))
    if output == "json":
        from dataclasses import asdict

        from penstock.cli.render.output import print_data

        print_data(asdict(graph), Output.json)
        return
    from penstock.cli.render.job_graph import job_dot, job_tree

    if output == "dot":
        print(job_dot(graph))
    else:
        from penstock.cli.render.table import console

        console().print(job_tree(graph), soft_wrap=True)


@app.command()
def top(name: RunName) -> None:
    """Show what the cards of a run do, live, as penstock card top. q quits."""
    from penstock.cli.commands import card
    from penstock.model import PenstockError
    from penstock.training.figures import programs_of
    from penstock.training.run import find

    run = find(name)
    state = run.state()
    programs = programs_of(state.pid)
    if not programs:
        raise PenstockError(
            f"run {run} has no cards now", f"it is {state.phase}", "see penstock train status"
        )
    card.top(programs[0].pid)


@app.command()
def logs(
    name: RunName,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print what comes, until the run is over.")
    ] = False,
) -> None:
    """Print what a run's program has printed."""
    from penstock.training.run import ACTIVE, find

    run = find(name)
    goes_on = {*ACTIVE, "unwatched"}
    _print_output(run, (lambda: run.state().phase not in goes_on) if follow else (lambda: True))


@app.command()
def stop(name: RunName) -> None:
    """Stop a run: its program gets SIGTERM, and SIGKILL if it does not end."""
    from penstock.model import PenstockError
    from penstock.training.run import ACTIVE, find

    run = find(name)
    state = run.state()
    supervisor = run.supervisor()
    if supervisor is not None:
        os.kill(supervisor, signal.SIGTERM)
    elif state.phase == "unwatched":
        _end_unwatched(run, state)
    else:
        raise PenstockError(f"run {run} is {state.phase}", "it is over", "see penstock train ls")
    deadline_s = time.monotonic() + 2 * run.job().spec.grace_s + STARTS_WITHIN_S
    while run.state().phase in {*ACTIVE, "unwatched"}:
        if time.monotonic() > deadline_s:
            raise PenstockError(f"run {run} does not end", f"its program has pid {state.pid}",
                                "see what it waits for")  # fmt: skip
        time.sleep(LOOKS_S)
    print(f"{run} {run.state().phase}")


def _end_unwatched(run: Run, state: State) -> None:
    """Ends a program whose supervisor is gone."""
    import dataclasses

    from penstock.training.process import end_group

    lock = run.lock()
    end_group(state.pid, run.job().spec.grace_s, lambda: not state.program_runs())
    run.write_state(dataclasses.replace(
        state, phase="stopped", pid=0, reason="it was told to stop", ended_s=time.time()
    ))  # fmt: skip
    os.close(lock)


@app.command()
def rm(
    names: Annotated[list[str], typer.Argument(metavar="RUN…", help="Runs that are over.")],
) -> None:
    """Remove runs with all that they have printed and kept."""
    from penstock.training.run import find

    for run in dict.fromkeys(find(name) for name in names):
        run.remove()
        print(f"{run} removed")
