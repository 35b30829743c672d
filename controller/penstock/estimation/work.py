"""`Work`: what one training step, or one forward pass, computes: counted, by elements, unknown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Phase = Literal["forward", "backward", "optimizer"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer")


@dataclass
class Unknown:
    """An operation whose FLOPs are not known: how often it was called, and on how much."""

    calls: int = 0
    elements: int = 0


@dataclass
class Work:
    """Tally of operations. FLOPs are of contractions alone.

    `by_operation` has the FLOPs of each contraction by name. `elements` are those that
    pointwise operations, reductions, copies and the like touched; what they cost is memory
    traffic, which the efficiency covers.
    """

    flops: dict[Phase, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    elements: dict[Phase, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    by_operation: dict[str, int] = field(default_factory=dict)
    by_dtype: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, Unknown] = field(default_factory=dict)

    @property
    def total_flops(self) -> int:
        """FLOPs of all phases."""
        return sum(self.flops.values())

    @property
    def total_elements(self) -> int:
        """Elements of all phases."""
        return sum(self.elements.values())

    def add_contraction(self, phase: Phase, name: str, flops: int, dtype: str) -> None:
        """Counts a contraction by its FLOPs."""
        self.flops[phase] += flops
        self.by_operation[name] = self.by_operation.get(name, 0) + flops
        self.by_dtype[dtype] = self.by_dtype.get(dtype, 0) + flops

    def add_elements(self, phase: Phase, elements: int) -> None:
        """Counts an operation by the elements it touches."""
        self.elements[phase] += elements

    def add_unknown(self, name: str, elements: int) -> None:
        """Names an operation whose FLOPs are not known."""
        one = self.unknown.setdefault(name, Unknown())
        one.calls += 1
        one.elements += elements
