"""Peak memory of a step, from when each storage came to life and ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

Part = Literal[
    "parameters", "buffers", "optimizer state", "inputs", "gradients", "activations", "temporaries"
]
PARTS: tuple[Part, ...] = (
    "parameters", "buffers", "optimizer state", "inputs", "gradients", "activations", "temporaries",
)  # fmt: skip


@dataclass
class Lifetime:
    """One storage: its size, birth and end (None: it outlives the step), and its part."""

    size_bytes: int
    birth: int
    end: int | None
    part: Part


@dataclass(frozen=True)
class Memory:
    """Bytes at the moment of the peak, by part."""

    parts: dict[Part, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))

    @property
    def peak_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())


def peak_memory(lifetimes: Iterable[Lifetime]) -> Memory:
    """The parts of memory at the first moment when most of it is in use.

    A storage that ends at the moment when another is born is gone first.
    """
    changes: list[tuple[int, int, Part]] = []
    for one in lifetimes:
        if one.end is not None and one.end <= one.birth:
            continue
        changes.append((one.birth, one.size_bytes, one.part))
        if one.end is not None:
            changes.append((one.end, -one.size_bytes, one.part))
    now = dict.fromkeys(PARTS, 0)
    total = most = 0
    at_peak = dict(now)
    for _, change, part in sorted(changes, key=lambda change: (change[0], change[1])):
        now[part] += change
        total += change
        if total > most:
            most, at_peak = total, dict(now)
    return Memory(at_peak)
