"""Known NVIDIA models: rated half-precision compute, and the memory of a context.

Context sizes of models that have not been measured are rounded, generous estimates.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.devices.rates import has_words, rated_tflops

MIB = 1 << 20
HALF = "fp16"  # the tensor rate that TFLOPS in requests refer to; bf16's where a model has both


@dataclass(frozen=True)
class Model:
    """A model's rated TFLOPS at `HALF`, None if they are not known, and its contexts' size."""

    tflops: float | None
    context_bytes: int


# The first key that occurs in the name as whole words decides, so longer keys come first.
_CONTEXT_BYTES = (
    ("B200", 600 * MIB),
    ("H200", 560 * MIB),
    ("H100", 560 * MIB),
    ("A100", 450 * MIB),
    ("A30", 350 * MIB),
    ("A10", 300 * MIB),
    ("L40S", 450 * MIB),
    ("L40", 450 * MIB),
    ("L4", 300 * MIB),
    ("T4", 160 * MIB),
    ("V100", 330 * MIB),
)
_UNKNOWN_CONTEXT_BYTES = 512 * MIB


def model_of(name: str) -> Model:
    """The model of a device called `name`; unknown models have no rated TFLOPS."""
    context_bytes = (size for key, size in _CONTEXT_BYTES if has_words(name, key))
    return Model(rated_tflops(name, HALF), next(context_bytes, _UNKNOWN_CONTEXT_BYTES))
