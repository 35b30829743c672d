"""Messages of a compute pool as plain data, for `-o json`: keys name their units."""

from __future__ import annotations

import json
from datetime import timezone
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.node.rpc import (
        ApplicationMessage,
        BlockRunMessage,
        PoolEventMessage,
        PoolMessage,
        PoolMoveMessage,
        PoolNodeMessage,
        WhyMessage,
    )


def pool_data(state: PoolMessage) -> dict[str, object]:
    """A pool at a moment."""
    return {
        "pool": state.pool,
        "term": state.term,
        "leader": state.leader,
        "precision": state.precision,
        "time": moment(state, "time"),
        "blocks": state.blocks,
        "free_blocks": state.free_blocks,
        "longest_run_blocks": state.longest_run,
        "nodes": [node_data(one) for one in state.nodes],
        "applications": [application_data(one) for one in state.applications],
        "history": [
            {
                "time": moment(one, "time"),
                "held_blocks": one.held_blocks,
                "waiting_blocks": one.waiting_blocks,
                "suspended_blocks": one.suspended_blocks,
            }
            for one in state.history
        ],
    }


def node_data(node: PoolNodeMessage) -> dict[str, object]:
    """A node and its cards."""
    return {
        "name": node.name,
        "state": node.state,
        "first": node.first,
        "last": node.last,
        "blocks": count(node.first, node.last),
        "free_blocks": node.free_blocks,
        "finding": node.finding or None,
        "heard": moment(node, "heard"),
        "cards": [
            {
                "uuid": card.uuid,
                "index": card.index,
                "kind": card.kind,
                "model": card.model,
                "tflops": card.tflops,
                "memory_bytes": card.memory_bytes,
                "frees_memory": card.frees_memory,
                "first": card.first,
                "last": card.last,
                "blocks": count(card.first, card.last),
                "free_blocks": card.free_blocks,
            }
            for card in node.cards
        ],
    }


def application_data(one: ApplicationMessage) -> dict[str, object]:
    """An application and what it holds."""
    from penstock.node.rpc import span_of

    return {
        "name": one.name,
        "owner": one.owner,
        "phase": one.phase,
        "reason": one.reason or None,
        "asked_blocks": one.asked_blocks,
        "blocks": one.blocks,
        "priority": one.priority,
        "kind": one.kind or None,
        "span": span_of(one),
        "node": one.node or None,
        "runs": runs_data(one.runs),
        "parts": [
            {
                "node": part.node,
                "device_uuid": part.device_uuid,
                "device_index": part.device_index,
                "model": part.model,
                "first": part.first,
                "last": part.last,
                "memory_bytes": part.memory_bytes,
                "cores_permille": part.cores_permille,
            }
            for part in one.parts
        ],
        "claimed": moment(one, "claimed"),
        "since": moment(one, "since"),
        "suspended_seconds": seconds(one, "suspended_for"),
        "suspensions": one.suspensions,
        "host_bytes": one.host_bytes,
        "place": one.place or None,
        "command": list(one.command),
        "labels": dict(one.labels),
        "tenant": one.tenant or None,
    }


def why_data(answer: WhyMessage) -> dict[str, object]:
    """What an application or a claim waits for."""
    has_one = answer.HasField("application")
    return {
        "application": application_data(answer.application) if has_one else None,
        "reason": answer.reason,
        "helps": list(answer.helps),
        "place": answer.place or None,
    }


def move_data(move: PoolMoveMessage) -> dict[str, object]:
    """A move of a compaction. `took_seconds` is null until it has ended."""
    return {
        "application": move.application,
        "source": runs_data(move.source),
        "target": runs_data(move.target),
        "moved_bytes": move.moved_bytes,
        "cost_seconds": seconds(move, "cost"),
        "took_seconds": seconds(move, "took"),
        "failure": move.failure or None,
    }


def event_data(event: PoolEventMessage) -> dict[str, object]:
    """An event. What only this kind of event has is under `details`."""
    try:
        details = json.loads(event.details) if event.details else {}
    except ValueError:  # of a newer manager
        details = {"text": event.details}
    return {
        "number": event.number,
        "time": moment(event, "time"),
        "event": event.event,
        "application": event.application or None,
        "node": event.node or None,
        "reason": event.reason or None,
        "details": details,
    }


def runs_data(runs: Iterable[BlockRunMessage]) -> list[dict[str, int]]:
    """Ranges of block numbers of which both ends are included."""
    return [{"first": run.first, "last": run.last} for run in runs]


def count(first: int, last: int) -> int:
    """How many blocks `first` to `last` are; 0 is the first block of what has none."""
    return last - first + 1 if first else 0


def moment(message: Any, field: str) -> str | None:  # noqa: ANN401 - any message
    """A time in ISO 8601, None if it is not set."""
    if not message.HasField(field):
        return None
    when = getattr(message, field).ToDatetime(timezone.utc)
    return str(when.isoformat(timespec="milliseconds").replace("+00:00", "Z"))


def seconds(message: Any, field: str) -> float | None:  # noqa: ANN401 - any message
    """A duration in seconds, None if it is not set."""
    return getattr(message, field).ToNanoseconds() / 1e9 if message.HasField(field) else None
