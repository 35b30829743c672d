"""`Estimate`: what a model needs, as data and as text."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock.estimation.need import tflops_needed
from penstock.model import format_memory, human_memory

if TYPE_CHECKING:
    from penstock.estimation.memory import Memory
    from penstock.estimation.need import AddedMemory, Efficiency
    from penstock.estimation.work import Work

_MOST_OPERATIONS = 8  # in the text


@dataclass(frozen=True)
class Estimate:
    """FLOPs and memory of one step of a model, and the claim that gives it the wanted speed.

    `samples` is how many samples a step has, where that is known; `step_time_s` is None where no
    speed was asked for.
    """

    model: str
    training: bool
    precision: str
    samples: int | None
    parameters: int
    work: Work
    memory: Memory
    added: AddedMemory
    efficiency: Efficiency
    step_time_s: float | None
    notes: tuple[str, ...]

    @property
    def memory_bytes(self) -> int:
        """Device memory to claim, in bytes."""
        return self.memory.peak_bytes + self.added.total_bytes

    @property
    def tflops(self) -> float | None:
        """Rated TFLOPS that are needed; None where no speed was asked for."""
        if self.step_time_s is None:
            return None
        return tflops_needed(self.work.total_flops, self.step_time_s, self.efficiency.ratio)

    @property
    def blocks(self) -> int | None:
        """Blocks of the pool to claim; None where no speed was asked for."""
        return None if self.tflops is None else max(1, math.ceil(self.tflops))

    @property
    def memory_quantity(self) -> str:
        """`memory_bytes` rounded up, as --memory takes it."""
        unit = 2**30 if self.memory_bytes >= 10 * 2**30 else 2**20
        return format_memory(math.ceil(self.memory_bytes / unit) * unit)

    @property
    def claim(self) -> str:
        """The command that claims it; "" where no speed was asked for."""
        if self.blocks is None:
            return ""
        return f"penstock run --tflops {self.blocks} --memory {self.memory_quantity} -- …"

    def data(self) -> dict[str, Any]:
        """The estimate as plain values, for JSON."""
        return {
            "model": self.model,
            "training": self.training,
            "precision": self.precision,
            "samples": self.samples,
            "parameters": self.parameters,
            "flops": {**self.work.flops, "total": self.work.total_flops},
            "flops_by_operation": self.work.by_operation,
            "flops_by_dtype": self.work.by_dtype,
            "elements": {**self.work.elements, "total": self.work.total_elements},
            "unknown_operations": {name: asdict(one) for name, one in self.work.unknown.items()},
            "memory_bytes": {
                **{part.replace(" ", "_"): size for part, size in self.memory.parts.items()},
                "context": self.added.context_bytes,
                "workspaces": self.added.workspace_bytes,
                "headroom": self.added.headroom_bytes,
                "total": self.memory_bytes,
            },
            "efficiency_ratio": self.efficiency.ratio,
            "efficiency_source": self.efficiency.source,
            "step_time_seconds": self.step_time_s,
            "tflops": self.tflops,
            "blocks": self.blocks,
            "notes": list(self.notes),
            "claim": self.claim,
        }

    def lines(self) -> list[str]:
        """The estimate as text; the last line is the claim."""
        kind = "training" if self.training else "forward"
        samples = "" if self.samples is None else f", {self.samples} samples a step"
        return [
            f"{self.model}: {kind}, {self.precision}, {self.parameters:,} parameters{samples}",
            *self._work_lines(),
            *self._memory_lines(),
            *(f"note: {note}" for note in self.notes),
            *self._unknown_lines(),
            *self._need_lines(),
        ]

    def _work_lines(self) -> list[str]:
        shown = [(phase, flops) for phase, flops in self.work.flops.items() if flops]
        parts = ", ".join(f"{phase} {_amount(flops)}" for phase, flops in shown)
        most = sorted(self.work.by_operation.items(), key=lambda one: -one[1])[:_MOST_OPERATIONS]
        operations = ", ".join(f"{name} {_amount(flops)}" for name, flops in most)
        elements = _amount(self.work.total_elements)
        dtypes = ", ".join(f"{_amount(one)} in {name}" for name, one in self.work.by_dtype.items())
        return [
            f"FLOPs of a step: {_amount(self.work.total_flops)} ({parts or 'none'})",
            *([f"  by operation: {operations}"] if operations else []),
            *([f"  by type: {dtypes}"] if dtypes else []),
            f"  beside them: {elements} elements (pointwise, reductions, copies)",
        ]

    def _memory_lines(self) -> list[str]:
        parts = [f"{part} {human_memory(size)}" for part, size in self.memory.parts.items() if size]
        added = self.added
        more = (
            f"context {human_memory(added.context_bytes)}, "
            f"workspaces {human_memory(added.workspace_bytes)}, "
            f"headroom {human_memory(added.headroom_bytes)}"
        )
        return [
            f"memory: {human_memory(self.memory_bytes)}",
            f"  at the peak: {human_memory(self.memory.peak_bytes)} ({', '.join(parts)})",
            f"  added, assumed: {more}",
        ]

    def _unknown_lines(self) -> list[str]:
        return [
            f"warning: FLOPs of {name} are not known and not counted: called {one.calls} x, on up "
            f"to {_amount(one.elements)} elements in all"
            for name, one in self.work.unknown.items()
        ]

    def _need_lines(self) -> list[str]:
        if self.step_time_s is None or self.tflops is None:
            return ["for a claim, add --step-time (such as 200ms) or --throughput (such as 500/s)"]
        at_least = "at least " if self.work.unknown else ""
        return [
            f"efficiency: {self.efficiency.ratio:.3g} ({self.efficiency.source})",
            f"for {self.step_time_s * 1e3:.4g} ms a step: {at_least}{self.tflops:.3g} TFLOPS",
            self.claim,
        ]


def _amount(number: int) -> str:
    """A number with three digits and a word: 24.5 G."""
    for unit, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return str(number)
