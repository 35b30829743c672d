"""Data: how a job's data are prepared before its program, as its document says it."""

from __future__ import annotations

import os
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePath
from typing import TYPE_CHECKING

from pydantic import Field

from penstock.model import nearest
from penstock.training.fields import Name, Strict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.policy.document import KeyPath

MOST_AT_ONCE = 64


class Step(Strict):
    """One command that makes files or folders, once."""

    name: Name
    command: list[str] = Field(min_length=1)
    inputs: list[str] = Field(default_factory=list, description="files or folders that it reads")
    outputs: list[str] = Field(min_length=1, description="files or folders that it makes")
    after: list[str] = Field(default_factory=list, description="steps that must be done before")


class Data(Strict):
    """The steps that prepare a job's data."""

    prepare: list[Step] = Field(min_length=1)
    parallel: int = Field(1, ge=1, le=MOST_AT_ONCE, description="how many steps at the same time")


def problems_of(data: Data) -> Iterator[tuple[KeyPath, str]]:
    """What is wrong between steps, each with its place below `spec.data`."""
    steps = data.prepare
    names = [one.name for one in steps]
    for i, step in enumerate(steps):
        if step.name in names[:i]:
            yield ("prepare", i, "name"), f"another step has the name {step.name}: choose one"
        for k, name in enumerate(step.after):
            if name not in names:
                near = nearest(name, names)
                hint = f"; did you mean {near}?" if near else f" (steps: {', '.join(names)})"
                yield ("prepare", i, "after", k), f"there is no step {name!r}{hint}"
    if cycle := _cycle(steps):
        text = f"{' after '.join(cycle)}: none of them could be the first"
        yield ("prepare", names.index(cycle[0]), "after"), text
        return
    yield from _problems_of_files(steps)


def _cycle(steps: Sequence[Step]) -> list[str]:
    """The names of steps that wait for each other, the first one again at the end; or none."""
    try:
        TopologicalSorter({one.name: one.after for one in steps}).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def _problems_of_files(steps: Sequence[Step]) -> Iterator[tuple[KeyPath, str]]:
    before = _before(steps)
    for i, step in enumerate(steps):
        for k, one in enumerate(step.outputs):
            for other in steps[:i]:
                if any(_overlap(one, made) for made in other.outputs):
                    text = f"step {other.name} makes {one}, too: let one step make it"
                    yield ("prepare", i, "outputs", k), text
        for k, one in enumerate(step.inputs):
            for other in steps:
                is_before = other.name in before[step.name]
                if not is_before and any(_overlap(one, made) for made in other.outputs):
                    text = f"step {other.name} makes {one}: write after: [{other.name}]"
                    if other is step:
                        text = "it is an output of the same step: leave it out here"
                    yield ("prepare", i, "inputs", k), text


def _before(steps: Sequence[Step]) -> dict[str, set[str]]:
    """By each step's name, those of all that are done before it. There is no cycle."""
    after = {one.name: one.after for one in steps}
    found: dict[str, set[str]] = {}

    def of(name: str) -> set[str]:
        if name not in found:
            direct = after.get(name, [])
            found[name] = set(direct).union(*map(of, direct))
        return found[name]

    return {name: of(name) for name in after}


def _overlap(one: str, other: str) -> bool:
    """Whether one path is the other, or lies in it."""
    parts, others = (PurePath(os.path.normpath(path)).parts for path in (one, other))
    least = min(len(parts), len(others))  # 0: of the folder where the steps run
    return parts[:least] == others[:least]
