"""`penstock pool compact`: moves applications so that blocks lie together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import Output, OutputFormat, StateDir
from penstock.cli.pool_arguments import (
    PoolAddress,
    PoolCa,
    PoolCert,
    PoolKey,
    Yes,
    confirm,
    place_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.node.rpc import PoolClient, PoolMoveMessage


def compact(
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Pack everything towards the lowest numbers, even where it costs more than it "
            "gains. A plan has at most 2,000 moves: repeat the command for the rest.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan; move nothing.")
    ] = False,
    yes: Yes = False,
    output: OutputFormat = Output.table,
    pool: PoolAddress = None,
    pool_cert: PoolCert = None,
    pool_key: PoolKey = None,
    pool_ca: PoolCa = None,
    state_dir: StateDir = None,
) -> None:
    """Move applications so that free blocks, and each application's blocks, lie together.

    Shows what each move costs: the memory that is copied, and how long the application stands
    still; afterwards, how long it did. A process stays on its node, because released memory cannot
    be restored on another one; the cards of a virtual card may move to other nodes. It asks before
    applications stand still. The exit code is 2 if a move failed.
    """
    with place_of(pool, pool_cert, pool_key, pool_ca, state_dir).connect(as_admin=True) as client:
        updates = list(client.compact(full=full, dry_run=True))
        plan = [move for update in updates for move in update.plan]
        left_out = [move for update in updates for move in update.left_out]
        is_partial = any(update.is_partial for update in updates)
        if output is Output.table:
            _print_plan(plan, left_out)
        standing = sum(move.cost.ToNanoseconds() > 0 for move in plan)
        if not dry_run and standing:
            one = "application" if standing == 1 else "applications"
            confirm(f"Let {standing} {one} stand still while memory is copied?", yes=yes)
        moves = [] if dry_run or not plan else _moved(client, plan, output, full=full)
    if output is not Output.table:
        from penstock.cli.render.output import print_data
        from penstock.cli.render.pool_data import move_data

        data = {
            "full": full,
            "is_partial": is_partial,
            "plan": [move_data(one) for one in plan],
            "left_out": [move_data(one) for one in left_out],
            "moved_bytes": sum(one.moved_bytes for one in plan),
            "cost_seconds": sum(one.cost.ToNanoseconds() for one in plan) / 1e9,
            "moves": [move_data(one) for one in moves],
        }
        print_data(data, output)
    elif is_partial:
        print("there is more to move: repeat the command")
    if any(move.failure for move in moves):
        raise typer.Exit(2)


def _print_plan(plan: Sequence[PoolMoveMessage], left_out: Sequence[PoolMoveMessage]) -> None:
    from penstock.cli.render.pool_table import duration_text, move_table, printed
    from penstock.cli.render.table import console
    from penstock.model import human_memory

    for move in left_out:
        print(f"{move.application}: not in the plan: {move.failure}")
    if not plan:
        others = "other " if left_out else ""
        print(f"nothing to move: no {others}move gains more than it costs")
        return
    printed(console(), [move_table(plan)])
    copied = human_memory(sum(one.moved_bytes for one in plan))
    still_s = sum(one.cost.ToNanoseconds() for one in plan) / 1e9
    number = f"{len(plan)} move{'' if len(plan) == 1 else 's'}"
    print(
        f"{number}: {copied} copied; applications stand still for {duration_text(still_s)} in all"
    )


def _moved(
    client: PoolClient, plan: Sequence[PoolMoveMessage], output: Output, *, full: bool
) -> list[PoolMoveMessage]:
    """Carries the plan out; prints each move as it ends."""
    done: list[PoolMoveMessage] = []
    for update in client.compact(full=full):
        if update.plan and output is Output.table and list(update.plan) != list(plan):
            print("the pool has changed since; the plan is now:")
            _print_plan(update.plan, update.left_out)
        if update.HasField("done"):
            done.append(update.done)
            if output is Output.table:
                print(_line(update.done), flush=True)
    return done


def _line(move: PoolMoveMessage) -> str:
    from penstock.cli.render.pool_table import duration_text, runs_text

    if move.failure:
        return f"{move.application}: not moved: {move.failure}"
    took = duration_text(move.took.ToNanoseconds() / 1e9)
    return (
        f"{move.application}: {runs_text(move.source)} -> {runs_text(move.target)}, "
        f"stood still for {took}"
    )
