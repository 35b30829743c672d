"""Rendering of a training job's graph: a tree for people, and text for Graphviz."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from rich.text import Text
from rich.tree import Tree

from penstock.model import human_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.training.graph import CardNode, Graph, ManagerNode, PoolNode, StepNode


def job_tree(graph: Graph) -> Tree:
    """The graph as a tree: what is done first is above."""
    tree = Tree(Text(graph.run or "not started"))
    if graph.steps:
        steps = tree.add(Text("preparation of data"))
        for one in graph.steps:
            steps.add(Text(_step_text(one)))
    manager = tree.add(Text(_manager_text(graph.manager)))
    if graph.manager.copy_bytes is not None:
        manager.add(Text(_copy_text(graph.manager)))
    if graph.pool is not None:
        manager = manager.add(Text(_pool_text(graph.pool)))
    for group in graph.groups:
        below = manager.add(Text(f"group of {group.kind} cards of node {group.node}"))
        for card in group.cards:
            below.add(Text(f"card {card.number} {card.card}: {_card_text(card)}"))
    if graph.spares:
        manager.add(Text(f"spare cards: {', '.join(graph.spares)}"))
    return tree


def _step_text(one: StepNode) -> str:
    after = f", after {', '.join(one.after)}" if one.after else ""
    reads = f"{', '.join(one.inputs)} -> " if one.inputs else ""
    return f"{one.name} ({one.phase}{after}): {shlex.join(one.command)}: {reads}" + ", ".join(
        one.outputs
    )


def _manager_text(one: ManagerNode) -> str:
    pid = f", attempt {one.attempt}, pid {one.pid}" if one.pid else ""
    after = f", after {', '.join(one.after)}" if one.after else ""
    return f"task manager, the program ({one.phase}{pid}{after}): {shlex.join(one.command)}"


def _copy_text(one: ManagerNode) -> str:
    size = human_memory(one.copy_bytes or 0)
    age = f", {one.copy_age_s:.0f} s old" if one.copy_age_s is not None else ""
    return f"copy of what is on the cards, to restore lost ones: {size}{age}"


def _pool_text(one: PoolNode) -> str:
    name = f"application {one.application}" if one.application else "an application"
    more = [f"memory {one.memory}" if one.memory else "", f"kind {one.kind}" if one.kind else "",
            f"priority {one.priority}" if one.priority else ""]  # fmt: skip
    return ", ".join(filter(None, [f"{name} of the compute pool: {one.tflops} TFLOPS", *more]))


def _card_text(one: CardNode) -> str:
    share = "share measured at its start" if one.share is None else f"{100 * one.share:.0f} %"
    rows = "" if one.rows is None else f", {one.rows} rows of the last"
    keeps = f"; keeps {one.parameters} of the parameters" if one.parameters else ""
    return f"{share} of each batch{rows}{keeps}" if one.share is not None else f"{share}{keeps}"


def job_dot(graph: Graph) -> str:
    """The graph in the language of Graphviz: what depends on what, and who is told what."""
    return "\n".join(["digraph job {", "  rankdir=LR;", "  node [shape=box];",
                      *(f"  {one}" for one in _dot_lines(graph)), "}"])  # fmt: skip


def _dot_lines(graph: Graph) -> Iterator[str]:
    for step in graph.steps:
        yield _node(f"step {step.name}", f"{step.name}\n{step.phase}")
        for before in step.after:
            yield _edge(f"step {before}", f"step {step.name}")
    manager = graph.manager
    yield _node("manager", f"{shlex.join(manager.command)}\ntask manager, {manager.phase}")
    for before in manager.after:
        yield _edge(f"step {before}", "manager")
    teller = "manager"
    if graph.pool is not None:
        teller = "pool"
        yield _node("pool", _pool_text(graph.pool))
        yield _edge("manager", "pool")
    for i, group in enumerate(graph.groups):
        yield f"subgraph cluster_{i} {{ label={_quoted(f'{group.kind} of node {group.node}')};"
        for card in group.cards:
            yield "  " + _node(f"card {card.number}", f"card {card.number}\n{card.card}")
        yield "}"
        for card in group.cards:
            yield _edge(teller, f"card {card.number}", _card_text(card))


def _node(name: str, label: str) -> str:
    return f"{_quoted(name)} [label={_quoted(label)}];"


def _edge(one: str, other: str, label: str = "") -> str:
    end = f" [label={_quoted(label)}]" if label else ""
    return f"{_quoted(one)} -> {_quoted(other)}{end};"


def _quoted(text: str) -> str:
    """A string as both Graphviz and JSON have it."""
    return json.dumps(text, ensure_ascii=False)
