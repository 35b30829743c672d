"""Settings of a pool's manager: what an operator may choose."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.scheduling.blocks.rules import Rules

SECOND_NS = 10**9


@dataclass(frozen=True)
class Settings:
    """What holds for one manager.

    `node_timeout_ns`: how long a node may be silent before it has left. `lease_ns`: how long a
    claim outlasts its holder's last sign of life. `highest_priority`: of callers who are no
    administrators.
    """

    rules: Rules = field(default_factory=Rules)
    node_timeout_ns: int = 60 * SECOND_NS
    lease_ns: int = 30 * SECOND_NS
    highest_priority: int = 100
    precision: str = "bf16"
    leader: str = "manager"
    most_waiting_of_user: int = 64
    most_applications_of_user: int = 1024
    most_applications: int = 1_000_000
