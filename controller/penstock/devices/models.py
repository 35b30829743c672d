"""Known NVIDIA models: rated compute, and the memory of a context.

TFLOPS are the dense (no sparsity) fp16/bf16 tensor rates of the vendor's datasheets. Context sizes
are round estimates, on the large side, until a device has been measured.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Model:
    """Datasheet figures of one model; `key` is part of the name that NVML reports."""

    key: str
    tflops: float | None
    context_bytes: int


# The first key that occurs in the name, as whole words, decides: longer names come first.
MODELS = (
    Model("B200", 2250, 600 * MIB),
    Model("H200", 989, 560 * MIB),
    Model("H100 PCIe", 756, 560 * MIB),
    Model("H100", 989, 560 * MIB),
    Model("A100", 312, 450 * MIB),
    Model("A30", 165, 350 * MIB),
    Model("A10", 125, 300 * MIB),
    Model("L40S", 362, 450 * MIB),
    Model("L40", 181, 450 * MIB),
    Model("L4", 121, 300 * MIB),
    Model("T4", 65, 160 * MIB),
    Model("V100", 125, 330 * MIB),
)
UNKNOWN = Model("", None, 512 * MIB)


def model_of(name: str) -> Model:
    """The model of a device with that `name`; unknown models have no rated TFLOPS."""
    words = name.upper().replace("-", " ")
    return next((m for m in MODELS if f" {m.key.upper()} " in f" {words} "), UNKNOWN)
