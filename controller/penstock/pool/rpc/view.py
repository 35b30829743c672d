"""View of a pool: its state as messages, for status, the map and streams about applications."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.pool.desired import claim_of, parts_of
from penstock.pool.rpc.convert import SPAN_NUMBERS, set_duration, set_time
from penstock.scheduling.blocks.run import total
from penstock_api.v1 import pool_pb2 as pb

if TYPE_CHECKING:
    from penstock.pool.holding import Holding
    from penstock.pool.manager import Manager
    from penstock.pool.registry import Registry
    from penstock.scheduling.blocks.pool import Pool

AT_ONCE = 128  # applications that are shown while claims wait: 5 ms
PAUSE_S = 0.0002  # who waits for the lock would not get it without
_PHASES = {
    "preparing": "starting", "unsuspending": "suspending", "moving-out": "moving",
    "moving-in": "moving", "moving-back": "moving",
}  # fmt: skip


def pool_state(manager: Manager, *, summary: bool) -> pb.PoolState:
    """The pool as it is.

    Claims may be served between the applications of a large pool: those that come meanwhile are
    missing, and each is shown as it is at its turn.

    Raises:
        PenstockError: the database cannot be read.
    """
    names: list[str] = []
    with manager.reading() as registry:
        space = registry.pool.space
        state = pb.PoolState(
            pool=manager.store.identity, term=manager.store.term, leader=manager.settings.leader,
            precision=manager.settings.precision, blocks=space.size[""],
            free_blocks=space.free[""], longest_run=space.longest(),
        )  # fmt: skip
        set_time(state.time, manager.clock.now_ns())
        for name in manager.ranges:
            state.nodes.append(node_message(manager, name, cards=not summary))
        for node in manager.nodes:
            if node.name not in manager.ranges and node.link is not None:
                state.nodes.append(node_message(manager, node.name, cards=not summary))
        if not summary:
            names = [one.name for one in _in_order(registry)]
        for sample in manager.history:
            added = state.history.add(
                held_blocks=sample.held, waiting_blocks=sample.waiting,
                suspended_blocks=sample.suspended,
            )  # fmt: skip
            set_time(added.time, sample.time_ns)
        _add_applications(state, manager, names[:AT_ONCE])
    for at in range(AT_ONCE, len(names), AT_ONCE):
        time.sleep(PAUSE_S)
        with manager.reading():
            _add_applications(state, manager, names[at : at + AT_ONCE])
    return state


def _add_applications(state: pb.PoolState, manager: Manager, names: list[str]) -> None:
    """Adds those of the applications that are still there. The lock must be held."""
    for name in names:
        one = manager.registry.holdings.get(name)
        if one is not None:
            state.applications.append(application(manager, one))


def application(manager: Manager, one: Holding) -> pb.Application:
    """One application. The manager's lock must be held."""
    registry = manager.registry
    core = registry.pool.applications.get(one.name)
    # Those that suspend for it hold its blocks until they have.
    runs = core.runs if core is not None and core.phase != "starting" else ()
    if core is not None and one.ordered_blocks and core.claim.span == "pool":
        runs = one.placed  # a virtual card leaves what it is to lose before that is taken back
    message = pb.Application(
        name=one.name, owner=one.owner, phase=phase_of(one), reason=_reason(manager, one),
        asked_blocks=core.claim.blocks if core else one.asked_blocks,
        blocks=total(runs), priority=core.claim.priority if core else 0,
        kind=one.kind, span=SPAN_NUMBERS[one.span], node=one.node,
        runs=[pb.BlockRun(first=run.first, last=run.last) for run in runs],
        suspensions=one.suspensions, command=one.command, labels=one.labels, tenant=one.name,
    )  # fmt: skip
    claim = claim_of(registry, one)
    for numbers, part, first in parts_of(registry.pool.space, runs) if claim else ():
        link = manager.nodes.known(numbers.name)
        indexes = {each.card.uuid: each.index for each in link.cards} if link else {}
        message.parts.add(
            node=numbers.name, device_uuid=part.card.uuid, model=part.card.model,
            device_index=indexes.get(part.card.uuid, part.at), first=first,
            last=first + part.blocks - 1, cores_permille=part.cores_permille,
            memory_bytes=claim.memory_of(part.card, part.blocks),  # type: ignore[union-attr]
            address=link.address if link else "",
        )  # fmt: skip
    for node in one.nodes:
        link = manager.nodes.known(node)
        if link is not None and one.name in link.parts:
            message.host_bytes += link.parts[one.name].host_bytes
    set_time(message.claimed, one.claimed_ns)
    set_time(message.since, one.since_ns)
    suspended_ns = one.suspended_for_ns
    if one.suspended_since_ns:
        suspended_ns += max(0, manager.clock.now_ns() - one.suspended_since_ns)
    set_duration(message.suspended_for, suspended_ns)
    if core is not None and core.phase in {"waiting", "suspended"}:
        message.place = registry.pool.queue.place(core) + 1
    return message


def node_message(manager: Manager, name: str, *, cards: bool = True) -> pb.PoolNode:
    """One node. The manager's lock must be held."""
    link, numbers = manager.nodes.known(name), manager.ranges.get(name)
    message = pb.PoolNode(name=name, finding=link.finding if link else "")
    is_there = link is not None and link.is_there(time.monotonic_ns())
    message.state = "there" if is_there else "away"
    if name in manager.draining and is_there:
        message.state = "draining"
    if link is not None and link.heard_wall_ns:
        set_time(message.heard, link.heard_wall_ns)
    indexes = {one.card.uuid: one.index for one in link.cards} if link else {}
    if numbers is not None:
        message.first, message.last = numbers.first, numbers.last
        space = manager.registry.pool.space
        node = space.nodes[space.node_at(numbers.first)]
        free = list(node.runs()) if node else []
        message.free_blocks = node.free if node else 0
        for at, card in enumerate(numbers.cards if cards else ()):
            first = numbers.starts[at]
            last = first + card.blocks - 1
            message.cards.add(
                uuid=card.uuid, index=indexes.get(card.uuid, at), kind=card.kind, model=card.model,
                tflops=card.tflops, memory_bytes=card.memory_bytes, frees_memory=card.frees_memory,
                first=first, last=last,
                free_blocks=sum(
                    max(0, min(run.last, last) - max(run.first, first) + 1) for run in free
                ),
            )  # fmt: skip
    held = {card.uuid for card in numbers.cards} if numbers is not None else set()
    for one in link.cards if link and cards else ():
        if one.card.uuid not in held:
            message.cards.add(
                uuid=one.card.uuid, index=one.index, kind=one.card.kind, model=one.card.model,
                tflops=one.card.tflops, memory_bytes=one.card.memory_bytes,
                frees_memory=one.card.frees_memory, left_out=one.left_out or message.finding,
            )  # fmt: skip
    return message


def _in_order(registry: Registry) -> list[Holding]:
    """Those that hold blocks by number, then the queue in its order, then those that end."""
    applications, holdings = registry.pool.applications, registry.holdings
    holding = sorted((one.runs, name) for name, one in applications.items() if one.runs)
    names = [name for _, name in holding] + list(registry.pool.queue)
    listed = set(names)
    names += [name for name in holdings if name not in listed]
    return [holdings[name] for name in names if name in holdings]


def phase_of(one: Holding) -> str:
    """The phase that callers see of an application."""
    if one.state == "ending" and one.outcome == "lost":
        return "lost"
    return _PHASES.get(one.state, one.state)


def _reason(manager: Manager, one: Holding) -> str:
    if one.state == "waiting":
        core = manager.registry.pool.applications[one.name]
        return manager.registry.pool.shortage(core.claim, manager.clock.now_ns())
    for node in one.nodes if one.state != "running" else ():
        link = manager.nodes.known(node)
        if link is None or not link.is_there(time.monotonic_ns()):
            return f"node {node} is away" + (f"; {one.reason}" if one.reason else "")
        part = link.parts.get(one.name)
        if part is not None and part.reason and part.revision == one.revision:
            return f"node {node}: {part.reason}"
    return _reason_in_pool(manager.registry.pool, one, manager.clock.now_ns())


def _reason_in_pool(pool: Pool, one: Holding, now_ns: int) -> str:
    core = pool.applications.get(one.name)
    if core is None or core.phase not in {"running", "suspended"}:
        return one.reason
    closed = pool.held_back(core)
    if core.phase == "running":
        return f"it is on {closed} and keeps its blocks there" if closed else one.reason
    waits_for = (
        f"it can be resumed only on {closed} once that takes new work again"
        if closed
        else pool.shortage(core.claim, now_ns)
    )
    return f"{one.reason}; {waits_for}" if one.reason else waits_for
