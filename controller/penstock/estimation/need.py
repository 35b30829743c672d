"""From FLOPs and a wanted speed to TFLOPS and memory that are to be claimed."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from penstock.model import PenstockError, QuantityError, parse_duration_ns

DEFAULT_EFFICIENCY = 0.35
EFFICIENCY_SOURCE = (
    "assumed: a little below the 38 to 43 % of dense BF16 that Llama 3's training is reported to "
    "reach on H100; small or convolutional models reach less"
)
DEFAULT_HEADROOM = 0.10
# What a card takes beside tensors. Assumed, not measured: they differ by card, driver and library.
CONTEXT_BYTES = 512 * 2**20  # the driver's context, and kernels that are loaded
WORKSPACE_BYTES = 64 * 2**20  # of matrix and convolution libraries


@dataclass(frozen=True)
class Efficiency:
    """The part of its rated TFLOPS that a card yields, 0 to 1, and where the figure is from."""

    ratio: float = DEFAULT_EFFICIENCY
    source: str = EFFICIENCY_SOURCE


@dataclass(frozen=True)
class AddedMemory:
    """Bytes that a card takes beside the tensors of a step, by name."""

    context_bytes: int
    workspace_bytes: int
    headroom_bytes: int  # rounding and fragmentation of the allocator

    @property
    def total_bytes(self) -> int:
        """Bytes of all terms."""
        return self.context_bytes + self.workspace_bytes + self.headroom_bytes


def added_memory(peak_bytes: int, headroom: float = DEFAULT_HEADROOM) -> AddedMemory:
    """What a card takes beside `peak_bytes`. Raises `PenstockError` for a wrong headroom."""
    if not (math.isfinite(headroom) and 0 <= headroom <= 10):
        raise PenstockError(
            f"invalid headroom {headroom:g}", "it is a part of the memory, from 0 to 10",
            "give 0.1 for a tenth more",
        )  # fmt: skip
    return AddedMemory(CONTEXT_BYTES, WORKSPACE_BYTES, math.ceil(peak_bytes * headroom))


def tflops_needed(flops: int, step_time_s: float, efficiency: float) -> float:
    """Rated TFLOPS that do `flops` in `step_time_s`."""
    return flops / step_time_s / efficiency / 1e12


def step_time_of(
    step_time: object, throughput: object, samples_in_a_step: int | None
) -> float | None:
    """Seconds of a step, from a time or from samples a second; None if neither is given.

    Raises:
        PenstockError: both are given, or one is not a quantity, or it is not known how many samples
            a step has.
    """
    if step_time is not None and throughput is not None:
        raise PenstockError(
            "--step-time and --throughput contradict each other", "each decides the speed",
            "give only one of them",
        )  # fmt: skip
    if step_time is not None:
        return _seconds(step_time, "--step-time")
    if throughput is None:
        return None
    if samples_in_a_step is None:
        raise PenstockError(
            "a step of unknown size", "the first input has no first dimension to tell the samples",
            "give --step-time instead of --throughput",
        )  # fmt: skip
    return samples_in_a_step / _a_second(throughput)


def given_efficiency(ratio: float | None, measured: object, flops: int) -> Efficiency:
    """The efficiency that is given, or that of a measured run such as "180ms@40".

    Raises:
        PenstockError: both are given, or one is not a quantity, or the run was impossibly fast.
    """
    if ratio is not None and measured is not None:
        raise PenstockError(
            "--efficiency and --measured contradict each other", "each decides the efficiency",
            "give only one of them",
        )  # fmt: skip
    if measured is not None:
        return _measured(str(measured), flops)
    if ratio is None:
        return Efficiency()
    if not 0 < ratio <= 1:
        raise PenstockError(
            f"invalid efficiency {ratio:g}", "it is a part of the rated TFLOPS",
            "give a number above 0 and up to 1, such as 0.4",
        )  # fmt: skip
    return Efficiency(ratio, "given")


def _measured(text: str, flops: int) -> Efficiency:
    time_text, _, tflops_text = text.partition("@")
    try:
        tflops = float(tflops_text)
    except ValueError:
        tflops = math.nan
    if not (math.isfinite(tflops) and tflops > 0):
        raise PenstockError(
            f"invalid measured run {text[:40]!r}", "a step's time and the TFLOPS it had are needed",
            "write it like 180ms@40",
        )  # fmt: skip
    ratio = flops / (_seconds(time_text, "--measured") * tflops * 1e12)
    if not 0 < ratio <= 1:
        raise PenstockError(
            f"impossible measured run {text[:40]!r}",
            f"the step's {flops / 1e12:.3g} TFLOPs in that time are {ratio:.0%} of the rating",
            "give the time and the TFLOPS of the same step, in the pool's precision",
        )
    return Efficiency(ratio, f"measured: {text}")


def _seconds(value: object, option: str) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    try:
        return parse_duration_ns(f"{value}s" if is_number else value) / 1e9
    except QuantityError as error:
        raise PenstockError(
            f"invalid duration for {option}", str(error), "give a time, such as 200ms"
        ) from error


def _a_second(value: object) -> float:
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,9})?)(?:/s)?", str(value).strip(), re.ASCII)
    number = float(match[1]) if match else 0.0
    if number <= 0:
        raise PenstockError(
            f"invalid throughput {str(value)[:40]!r}", "samples a second are needed",
            "write it like 500/s",
        )  # fmt: skip
    return number
