"""`penstock pool`: the compute pool's state, and orders to its manager."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.commands import pool_acquire, pool_compact, pool_estimate, pool_serve
from penstock.cli.options import Output, OutputFormat, StateDir
from penstock.cli.pool_arguments import (
    ApplicationName,
    CardKind,
    PoolAddress,
    PoolCa,
    PoolCert,
    PoolKey,
    PoolMemory,
    Priority,
    SpanChoice,
    Yes,
    claim_of,
    confirm,
    place_of,
)
from penstock.cli.say import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.node.rpc import PoolEventMessage, PoolMessage, PoolNodeMessage, WhyMessage

MOST_ROWS = 50  # of nodes and of applications, on a terminal

app = typer.Typer(
    help="Claim blocks of a compute pool (1 block is 1 TFLOPS of a card), and look after the pool.",
    no_args_is_help=True,
)
app.command("acquire", context_settings={"allow_interspersed_args": False})(pool_acquire.acquire)
app.command("serve")(pool_serve.serve)
app.command("compact")(pool_compact.compact)
app.command("estimate")(pool_estimate.estimate)
app.command("serve")(pool_serve.serve)

NodeNames = Annotated[
    list[str] | None,
    typer.Option("--node", metavar="NODE", help="Only this node; repeatable, or separated by ','."),
]


@app.command()
def status(
    node: NodeNames = None,
    show_all: Annotated[bool, typer.Option("--all", help="All rows, on a terminal too.")] = False,
    output: OutputFormat = Output.table,
    pool: PoolAddress = None,
    pool_cert: PoolCert = None,
    pool_key: PoolKey = None,
    pool_ca: PoolCa = None,
    state_dir: StateDir = None,
) -> None:
    """Show nodes, free blocks, applications, and what waits and why."""
    with place_of(pool, pool_cert, pool_key, pool_ca, state_dir).connect(as_admin=True) as client:
        state = client.pool()
    names = _check_nodes(state, node)
    if names:
        _keep(state, names)
    if output is not Output.table:
        from penstock.cli.render.output import print_data
        from penstock.cli.render.pool_data import pool_data

        print_data(pool_data(state), output)
        return
    from penstock.cli.render.pool_table import (
        IN_QUEUE,
        application_table,
        node_table,
        printed,
        queue_table,
        summary_lines,
        time_of,
    )
    from penstock.cli.render.table import console

    screen, now_s = console(), time_of(state)
    for line in summary_lines(state):
        screen.print(line, markup=False, highlight=False, soft_wrap=True)
    queued = [one for one in state.applications if one.phase in IN_QUEUE]
    others = [one for one in state.applications if one.phase not in IN_QUEUE]
    most = MOST_ROWS if screen.is_terminal and not show_all else len(state.nodes) + len(others)
    most = max(most, MOST_ROWS)
    if not screen.is_terminal or show_all:
        most = max(most, len(queued))
    tables = [
        node_table(state.nodes[:most]),
        application_table(others[:most], now_s),
        queue_table(queued[:most], now_s),
    ]
    printed(screen, tables)
    left = [max(0, len(rows) - most) for rows in (state.nodes, others, queued)]
    if any(left):
        say(
            f"not shown: {left[0]} nodes, {left[1]} applications, {left[2]} in the queue; add "
            "--all or -o json, or choose a node with --node"
        )


@app.command("map")
def map_(
    node: NodeNames = None,
    output: OutputFormat = Output.table,
    pool: PoolAddress = None,
    pool_cert: PoolCert = None,
    pool_key: PoolKey = None,
    pool_ca: PoolCa = None,
    state_dir: StateDir = None,
) -> None:
    """Show who holds which blocks: a row a card, a letter an application.

    A large pool is shown as a character a node; --node shows a node's cards.
    """
    with place_of(pool, pool_cert, pool_key, pool_ca, state_dir).connect(as_admin=True) as client:
        state = client.pool()
    names = _check_nodes(state, node)
    if output is not Output.table:
        from penstock.cli.render.output import print_data
        from penstock.cli.render.pool_data import pool_data

        if names:
            _keep(state, names)
        print_data(pool_data(state), output)
        return
    from penstock.cli.render.pool_map import map_lines
    from penstock.cli.render.pool_table import summary_lines
    from penstock.cli.render.table import console

    screen = console()
    for line in summary_lines(state):
        screen.print(line, markup=False, highlight=False, soft_wrap=True)
    width = screen.width if screen.is_terminal else 120
    for line in map_lines(state, width, names):
        screen.print(line, highlight=False, soft_wrap=True)


@app.command()
def why(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Application; without it: a claim.")
    ] = None,
    tflops: Annotated[
        str | None, typer.Option(metavar="N", help="Of a claim: blocks of 1 TFLOPS.")
    ] = None,
    priority: Priority = "0",
    memory: PoolMemory = None,
    kind: CardKind = "",
    span: SpanChoice = "node",
    node: Annotated[
        str | None, typer.Option(metavar="NODE", help="Of a claim: only this node.")
    ] = None,
    output: OutputFormat = Output.table,
    pool: PoolAddress = None,
    pool_cert: PoolCert = None,
    pool_key: PoolKey = None,
    pool_ca: PoolCa = None,
    state_dir: StateDir = None,
) -> None:
    """Say what an application waits for, with figures, and what would help.

    With --tflops instead of a name: what would become of such a claim; nothing is claimed.
    """
    from penstock.model import PenstockError

    if (name is None) == (tflops is None):
        raise PenstockError(
            "it is not clear what is asked",
            "an application and a claim are given" if name else "nothing is given",
            "give either a NAME or --tflops N",
        )  # fmt: skip
    with place_of(pool, pool_cert, pool_key, pool_ca, state_dir).connect(as_admin=True) as client:
        if tflops is not None:
            claim = claim_of(tflops, priority, None, memory, kind, span, node)
            answer = client.why_claim(claim)
        else:
            answer = client.why(_checked(name or ""))
    if output is not Output.table:
        from penstock.cli.render.output import print_data
        from penstock.cli.render.pool_data import why_data

        print_data(why_data(answer), output)
        return
    _print_why(answer)


@app.command()
def watch(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME…]", help="Only these applications (default: all)"),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Go on with what happens from now on.")
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Like -o json: an object a line.")
    ] = False,
    output: OutputFormat = Output.table,
    pool: PoolAddress = None,
    pool_cert: PoolCert = None,
    pool_key: PoolKey = None,
    pool_ca: PoolCa = None,
    state_dir: StateDir = None,
) -> None:
    """Print what has happened in the pool, and what happens from now on, until Ctrl-C."""
    wanted = [_checked(one) for one in names or []]
    chosen = Output.json if as_json else output
    with place_of(pool, pool_cert, pool_key, pool_ca, state_dir).connect(as_admin=True) as client:
        for event in client.watch(wanted, follow=follow):
            print(_event_text(event, chosen), flush=True)


@app.command()
def resize(
    name: ApplicationName,
    tflops: Annotated[str, typer.Option(metavar="N", help="How many blocks it is to have.")],
    output: OutputFormat = Output.table,
    pool: PoolAddress = None,
    pool_cert: PoolCert = None,
    pool_key: PoolKey = None,
    pool_ca: PoolCa = None,
    state_dir: StateDir = None,
) -> None:
    """Change how many blocks a running application has, on the cards that it has already."""
    from penstock.client.options import blocks_of

    blocks = blocks_of(tflops)
    with place_of(pool, pool_cert, pool_key, pool_ca, state_dir).connect(as_admin=True) as client:
        application = client.resize(_checked(name), blocks)
    if output is not Output.table:
        from penstock.cli.render.output import print_data
        from penstock.cli.render.pool_data import application_data

        print_data(application_data(application), output)
        return
    from penstock.cli.render.pool_table import runs_text

    print(
        f"application {application.name} has {application.blocks} blocks: "
        f"{runs_text(application.runs)}"
    )


@app.command()
def release(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="Applications to end.")],
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="Time from SIGTERM to SIGKILL: 10s, 1m or 0.")
    ] = "10s",
    reason: Annotated[str, typer.Option(metavar="WORDS", help="Reason, for its events.")] = "",
    output: OutputFormat = Output.table,
    pool: PoolAddress = None,
    pool_cert: PoolCert = None,
    pool_key: PoolKey = None,
    pool_ca: PoolCa = None,
    state_dir: StateDir = None,
) -> None:
    """End applications: end their processes, then give their blocks back.

    Each name is tried. The exit code is 2 if one of them could not be released.
    """
    from penstock.model import PenstockError, parse_duration_ns

    grace_ns = parse_duration_ns(grace, or_none=True)
    checked = list(dict.fromkeys(_checked(one) for one in names))
    results: list[dict[str, object]] = []
    with place_of(pool, pool_cert, pool_key, pool_ca, state_dir).connect(as_admin=True) as client:
        for name in checked:
            error: PenstockError | None = None
            try:
                client.release(name, grace_ns, reason)
            except PenstockError as failure:
                error = failure
                say(failure)
            results.append(
                {"application": name, "released": error is None, "error": error and str(error)}
            )
            if output is Output.table and error is None:
                print(f"application {name} is released", flush=True)
    if output is not Output.table:
        from penstock.cli.render.output import print_data

        print_data(results, output)
    if not all(one["released"] for one in results):
        raise typer.Exit(2)


@app.command()
def drain(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Node, as in penstock pool status.")],
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop draining: the node takes new work again.")
    ] = False,
    now: Annotated[bool, typer.Option("--now", help="End the applications there.")] = False,
    yes: Yes = False,
    output: OutputFormat = Output.table,
    pool: PoolAddress = None,
    pool_cert: PoolCert = None,
    pool_key: PoolKey = None,
    pool_ca: PoolCa = None,
    state_dir: StateDir = None,
) -> None:
    """Let a node take nothing new, to take it out of the pool in order.

    Applications there run until they end; with --now they are ended. Those that are suspended there
    wait until the draining is stopped. When nothing is there any more, stop the node's agent.
    """
    from penstock.model import PenstockError

    if stop and now:
        raise PenstockError(
            "--stop and --now contradict each other", "one ends the draining, the other hastens it",
            "give only one of them",
        )  # fmt: skip
    _check_node_name(node)
    with place_of(pool, pool_cert, pool_key, pool_ca, state_dir).connect(as_admin=True) as client:
        if now:
            there = _names_on(client.pool(), node)
            if there:
                confirm(f"End {_counted(len(there), 'application')} on {node}?", yes=yes)
        answer = client.drain(node, stop=stop, now=now)
    if output is not Output.table:
        from penstock.cli.render.output import print_data
        from penstock.cli.render.pool_data import node_data

        print_data(node_data(answer), output)
        return
    print(_drained(answer))


def _names_on(state: PoolMessage, node: str) -> list[str]:
    """The applications that hold blocks of the node."""
    return [one.name for one in state.applications if any(part.node == node for part in one.parts)]


def _drained(node: PoolNodeMessage) -> str:
    from penstock.cli.render.pool_data import count

    if node.state != "draining":
        return f"node {node.name} is {node.state}"
    held = count(node.first, node.last) - node.free_blocks
    rest = f"{held} of its blocks are still held" if held else "nothing is there any more"
    return f"node {node.name} is draining: nothing new is placed there; {rest}"


def _check_nodes(state: PoolMessage, given: list[str] | None) -> list[str]:
    """The nodes that `--node` names. Raises `PenstockError` if there is no such node."""
    from penstock.model import PenstockError, listing, nearest

    names = [word for one in given or [] for word in one.split(",")]
    known = {node.name for node in state.nodes}
    for name in names:
        if name not in known:
            near = nearest(name, known)
            raise PenstockError(
                f"the pool has no node {name!r}",
                f"its nodes are {listing(sorted(known)) or 'none yet'}",
                f"did you mean {near}?" if near else "name one of them, or leave --node out",
            )
    return names


def _keep(state: PoolMessage, names: Sequence[str]) -> None:
    """Leaves only these nodes in the state, and the applications that have to do with them."""
    nodes = [one for one in state.nodes if one.name in names]
    applications = [
        one
        for one in state.applications
        if one.node in names or any(part.node in names for part in one.parts)
    ]
    del state.nodes[:], state.applications[:]
    state.nodes.extend(nodes)
    state.applications.extend(applications)


def _check_node_name(node: str) -> None:
    from penstock.model import PenstockError

    if not node.strip():
        raise PenstockError(
            "the node's name is empty", "perhaps a shell variable is not set",
            "name a node as listed by penstock pool status",
        )  # fmt: skip


def _checked(name: str) -> str:
    """An application's name, if it can be one. Raises `PenstockError`."""
    from penstock.client.options import name_of

    return name_of(name)


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _print_why(answer: WhyMessage) -> None:
    if answer.HasField("application"):
        one = answer.application
        place = f", place {answer.place} in the queue" if answer.place else ""
        blocks = one.blocks or one.asked_blocks
        print(f"application {one.name} is {one.phase}{place}: {blocks} blocks")
    print(answer.reason)
    if answer.helps:
        print("what would help:")
    for line in answer.helps:
        print(f"- {line}")


def _event_text(event: PoolEventMessage, output: Output) -> str:
    from penstock.cli.render.pool_data import event_data

    data = event_data(event)
    if output is Output.json:
        return json.dumps(data)
    if output is Output.yaml:
        import yaml

        return f"---\n{yaml.safe_dump(data, sort_keys=False, allow_unicode=True)}".rstrip("\n")
    about = event.application or event.node or "-"
    line = f"{data['time'] or '-':<24}  {event.event:<12}  {about:<20}  {event.reason}".rstrip()
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
