"""Moves of a pool's applications: the plan of a compaction, carried out one move after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.pool.manager import Manager
    from penstock.pool.registry import Registry
    from penstock.scheduling.blocks.compaction import Move


@dataclass(frozen=True)
class Planned:
    """A plan: what is to be moved, what cannot be, with why, and whether more is left."""

    moves: list[Move]
    hindered: list[tuple[Move, str]]
    is_partial: bool


def plan(manager: Manager, *, every: bool) -> Planned:
    """The moves that gain more than they cost.

    `every`: packs all towards the lowest numbers.
    """
    with manager.reading() as registry:
        found = registry.pool.compact(every=every)
        told = [(move, _hindrance(registry, move)) for move in found.moves]
        return Planned(
            [move for move, why in told if not why],
            [(move, why) for move, why in told if why],
            found.is_partial,
        )


def begin(manager: Manager, move: Move) -> str:
    """Begins a move, or renumbers at once; returns why it does not hold any more, else nothing."""
    with manager.changing() as registry:
        why = _hindrance(registry, move)
        if why:
            return why
        one, now_ns = registry.holdings[move.name], manager.clock.now_ns()
        if not registry.pool.begin(move, now_ns):
            return "its blocks, or those that it was to get, have changed meanwhile"
        core = registry.pool.applications[move.name]
        manager.progress.moves.pop(move.name, None)
        if core.phase == "running":
            registry.order(one, core.runs, suspended=False)
            manager.progress.moves[move.name] = ""
            registry.say("moved", move.name, runs=[str(run) for run in core.runs])
        else:
            registry.order(one, core.source, suspended=True)
            registry.become(one, "moving-out", "its blocks are to lie together")
            registry.say("moving", move.name, runs=[str(run) for run in core.runs])
        return ""


def result(manager: Manager, move: Move) -> str | None:
    """Why a move that has begun has failed, empty if it has not; None: it is under way."""
    with manager.reading() as registry:
        if move.name in manager.progress.moves:
            return manager.progress.moves.pop(move.name)
        one = registry.holdings.get(move.name)
        if one is None or one.state == "ending":
            return "it has ended"
        return None if one.state.startswith("moving") else "it was interrupted"


def _hindrance(registry: Registry, move: Move) -> str:
    """Why a move cannot be made; empty: it can."""
    one = registry.holdings.get(move.name)
    if one is None or one.state != "running" or one.ordered_blocks:
        return "it does not run, or is being resized"
    return ""
