"""Graph of a job: its steps, its program as the task manager, its cards and what each is told."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.card.card_list import parse_cards
from penstock.card.kinds import kind_and_number
from penstock.card.served_cards import ServedCard
from penstock.training.names import application_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.card.published import ProgramFigures
    from penstock.training.document import TrainJob
    from penstock.training.run import Run, State

PLANNED = "planned"  # phase of what does not exist yet


@dataclass(frozen=True)
class StepNode:
    """A step of the data's preparation. `phase` as in `State`, or "planned"."""

    name: str
    command: list[str]
    inputs: list[str]
    outputs: list[str]
    after: list[str]
    phase: str = PLANNED


@dataclass(frozen=True)
class ManagerNode:
    """The program, which tells all cards what to do: the task manager.

    Attributes:
        after: The steps after which it is started.
        phase: The run's, or "planned".
        pid: Of its process; 0: it does not run.
        copy_bytes: What it keeps of the cards' content, to restore lost ones; None: nothing yet.
        copy_age_s: How old that is.
    """

    command: list[str]
    after: list[str]
    phase: str = PLANNED
    attempt: int = 0
    pid: int = 0
    copy_bytes: int | None = None
    copy_age_s: float | None = None


@dataclass(frozen=True)
class PoolNode:
    """What is claimed of the compute pool, which decides the cards."""

    application: str
    tflops: str
    memory: str | None
    kind: str
    priority: int


@dataclass(frozen=True)
class CardNode:
    """A card, which computes its rows of each batch.

    Attributes:
        number: Its place in the job.
        card: What it is.
        share: Its part of the rows; None: it is measured when the program starts.
        rows: What it had of the last batch; None: it is not known.
        parameters: "all" or "a part": what it keeps of them; empty: it does not run.
    """

    number: int
    card: str
    share: float | None
    rows: int | None = None
    parameters: str = ""


@dataclass(frozen=True)
class GroupNode:
    """The cards of one kind on one node."""

    node: str
    kind: str
    cards: list[CardNode] = field(default_factory=list)


@dataclass(frozen=True)
class Graph:
    """A job as a graph.

    Attributes:
        run: PROJECT/RUN; empty for a job that was not started.
        spares: The cards that may take the places of lost ones, as the job lists them.
    """

    run: str
    steps: list[StepNode]
    manager: ManagerNode
    pool: PoolNode | None
    groups: list[GroupNode]
    spares: list[str]


def graph_of_job(job: TrainJob) -> Graph:
    """The graph of a job before it is started."""
    spec = job.spec
    steps = [] if spec.data is None else spec.data.prepare
    return Graph(
        run="",
        steps=[StepNode(one.name, one.command, one.inputs, one.outputs, one.after)
               for one in steps],
        manager=ManagerNode(spec.command, _last(job)),
        pool=_pool(job, job.metadata.name, 1),
        groups=[] if spec.cards is None else _planned_groups(spec.card_variable() or ""),
        spares=spec.spares,
    )  # fmt: skip


def graph_of_run(run: Run, state: State, programs: Sequence[ProgramFigures]) -> Graph:
    """The graph of a run as it is now; `programs`: what its program has published."""
    job = run.job()
    planned = graph_of_job(job)
    program = programs[0] if programs else None
    steps = [StepNode(one.name, one.command, one.inputs, one.outputs, one.after,
                      state.steps.get(one.name, PLANNED))
             for one in planned.steps]  # fmt: skip
    manager = ManagerNode(
        job.spec.command, planned.manager.after, state.phase, state.attempt, state.pid,
        None if program is None else program.copy_bytes,
        None if program is None else program.copy_age_s,
    )  # fmt: skip
    groups = planned.groups if program is None else _groups(program)
    pool = _pool(job, run.name, state.attempt)
    return Graph(str(run), steps, manager, pool, groups, planned.spares)


def _last(job: TrainJob) -> list[str]:
    """The steps that no other step waits for."""
    steps = [] if job.spec.data is None else job.spec.data.prepare
    waited_for = {name for one in steps for name in one.after}
    return [one.name for one in steps if one.name not in waited_for]


def _pool(job: TrainJob, name: str | None, attempt: int) -> PoolNode | None:
    pool = job.spec.pool
    if pool is None:
        return None
    application = application_name(job.metadata.project, name, attempt) if name else None
    tflops = f"{pool.tflops:g}" if isinstance(pool.tflops, float) else pool.tflops
    return PoolNode(application or "", tflops, pool.memory, pool.kind, pool.priority)


def _planned_groups(variable: str) -> list[GroupNode]:
    """The groups of cards that $PENSTOCK_CARD lists."""
    cards = parse_cards(variable)
    speeds = [one.speed for one in cards]
    known = [one for one in speeds if one is not None]
    groups: dict[tuple[str, str], GroupNode] = {}
    for number, one in enumerate(cards):
        share = one.speed / sum(known) if one.speed is not None else None
        if isinstance(one, ServedCard):
            where, name = (one.host, "served"), f"port {one.port}"
        else:
            where, name = (socket.gethostname(), kind_and_number(one.kind)[0]), one.kind
        groups.setdefault(where, GroupNode(*where)).cards.append(CardNode(number, name, share))
    return list(groups.values())


def _groups(program: ProgramFigures) -> list[GroupNode]:
    """The groups of the cards that a program has."""
    groups: dict[tuple[str, str], GroupNode] = {}
    for number, one in enumerate(program.cards):
        kind = one.kind.partition(":")[0]
        group = groups.setdefault((one.node, kind), GroupNode(one.node, kind))
        parameters = "a part" if program.is_sharded else "all"
        group.cards.append(CardNode(number, one.kind, one.share, one.rows, parameters))
    return list(groups.values())
