"""Card of a training job on this machine: a kind, which device of it, and a first weight."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from penstock.model import PenstockError, nearest

# By which variable a process sees one device of a kind; the CPU needs none.
VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES",
           "xpu": "ZE_AFFINITY_MASK", "cpu": ""}  # fmt: skip
_MOST_NUMBER = 1023


@dataclass(frozen=True)
class Card:
    """A card, such as "cuda:1=3". `weight`: of a batch, until speeds are measured."""

    kind: str
    number: int = 0
    weight: float = 1.0

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"{self.kind}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> Card:
        """Reads KIND, KIND:NUMBER or KIND:NUMBER=WEIGHT. Raises `PenstockError`."""
        device, equals, weight_text = text.partition("=")
        kind, colon, number_text = device.partition(":")
        if kind not in VISIBLE:
            near = nearest(kind, VISIBLE)
            raise PenstockError(
                f"unknown kind of card in --card: {text[:40]!r}",
                f"there are {', '.join(VISIBLE)}",
                f"did you mean {near}?" if near else "name one of these",
            )
        is_number = number_text.isascii() and number_text.isdecimal() and len(number_text) < 5
        if (colon and not is_number) or (kind == "cpu" and int(number_text or 0)):
            raise PenstockError(
                f"invalid device for --card: {text[:40]!r}",
                "all CPU cards are the same processors" if kind == "cpu" else "what follows the "
                "colon is no number of a device",
                "write it like cpu, or cuda:1",
            )  # fmt: skip
        try:
            weight = float(weight_text) if equals else 1.0
        except ValueError:
            weight = math.nan
        if not (math.isfinite(weight) and weight > 0):
            raise PenstockError(
                f"invalid weight for --card: {text[:40]!r}", "a number above 0 is needed",
                "write it like cuda:1=3, or leave it out: speeds are measured",
            )  # fmt: skip
        return cls(kind, min(int(number_text or 0), _MOST_NUMBER), weight)

    def variables(self, cpu_cards: int) -> dict[str, str]:
        """What a rank's environment needs to see this card alone. `cpu_cards`: of the job."""
        found = {name: "" for name in VISIBLE.values() if name and name in os.environ}
        if self.kind != "cpu":
            return {**found, VISIBLE[self.kind]: str(self.number)}
        # Threads of several cards would wait for each other's processors.
        threads = max(1, (os.cpu_count() or 1) // max(1, cpu_cards))
        return {**found, "CUDA_VISIBLE_DEVICES": "",
                "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}  # fmt: skip
