"""One row of the report: the check, its result, and whether it ran on a real device."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal[
    "measured", "wrong", "differs", "failed", "hung", "fails natively", "not here", "cut"
]
"""`wrong`: what must hold in any case did not, a limit of memory say; a figure that only fell short
of its aim is `measured`. `differs`: native and under the shim did not give the same. `failed`,
`hung`: a program did. `fails natively`: without the shim too, so that nothing can be said of it.
`not here`: what it needs is not on this machine. `cut`: no time was left."""

BAD: tuple[Status, ...] = ("wrong", "differs", "failed", "hung")


class NotHereError(Exception):
    """This machine lacks something that a check needs; the message names it."""


class FailsNativelyError(Exception):
    """A program or library of others fails without the shim too; the message holds its words."""


class DiffersError(Exception):
    """Native and shim gave different results; the message holds both."""


@dataclass(frozen=True)
class Outcome:
    """The finding of a check."""

    measured: str  # for people, with units
    figures: dict[str, float] = field(default_factory=dict)  # for comparing runs; unit in the name
    aim: str = ""
    reached: bool | None = None  # None: nothing was to be reached
    details: dict[str, Any] = field(default_factory=dict)
    is_fault: bool = False  # the aim was one that no figure may miss: the row is `wrong`
    simulated: bool | None = None  # None: as the run's device is


@dataclass(frozen=True)
class Row:
    """One line of the report."""

    section: str
    name: str
    status: Status
    measured: str
    aim: str
    reached: bool | None
    simulated: bool
    seconds: float  # that it took
    figures: dict[str, float] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        """The key of the row, by which another run's report has the same row."""
        return self.section, self.name

    def as_dict(self) -> dict[str, Any]:
        """As it stands in the report's JSON."""
        return asdict(self)
