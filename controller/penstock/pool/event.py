"""Events of a pool: what happened to its nodes and applications."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `number` is given when it is written."""

    time_ns: int
    event: str
    application: str = ""
    node: str = ""
    reason: str = ""
    details: dict[str, object] = field(default_factory=dict)
    number: int = 0
