"""Rated TFLOPS of NVIDIA models by precision, each with the datasheet it comes from.

All figures are dense: where a datasheet prints tensor rates with sparsity, half of it is taken.
fp32 is the rate outside the tensor cores; tf32, bf16, fp16, fp8 are tensor rates; int8
is in TOPS.
"""

from __future__ import annotations

from dataclasses import dataclass

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8")


@dataclass(frozen=True)
class Rates:
    """Rated TFLOPS of one model; None where the model lacks the precision.

    `key` is part of the name that NVML reports.
    """

    key: str
    source: str
    fp32: float
    tf32: float | None
    bf16: float | None
    fp16: float
    fp8: float | None
    int8: float | None

    def at(self, precision: str) -> float | None:
        """The rate at one of `PRECISIONS`. Raises ValueError for other words."""
        if precision not in PRECISIONS:
            raise ValueError(f"unknown precision {precision!r}: one of {', '.join(PRECISIONS)}")
        rate: float | None = getattr(self, precision)
        return rate

    def known(self) -> dict[str, float]:
        """The precisions that the model has, and their rates."""
        return {one: rate for one in PRECISIONS if (rate := self.at(one)) is not None}


# In the order of the fields: fp32, tf32, bf16, fp16, fp8, int8. The first key that occurs in the
# name as whole words decides, so longer keys come first.
RATES = (
    Rates("B200", "NVIDIA Blackwell datasheet, HGX B200 column, a single GPU, halved where sparse",
           75, 1100, 2250, 2250, 4500, 4500),
    Rates("H200 NVL", "NVIDIA H200 Tensor Core GPU datasheet 3002446, H200 NVL column, halved",
           60, 417.5, 835.5, 835.5, 1670.5, 1670.5),
    Rates("H200", "NVIDIA H200 Tensor Core GPU datasheet 3002446, H200 SXM column, halved",
           67, 494.5, 989.5, 989.5, 1979, 1979),
    Rates("H100 NVL", "NVIDIA H100 Tensor Core GPU datasheet, H100 NVL column, halved",
           60, 417.5, 835.5, 835.5, 1670.5, 1670.5),
    Rates("H100 PCIe", "NVIDIA H100 Tensor Core GPU datasheet (2022 edition), PCIe column, halved",
           51, 378, 756.5, 756.5, 1513, 1513),
    Rates("H100", "NVIDIA H100 Tensor Core GPU datasheet (2023 edition), H100 SXM column, halved",
           67, 494.5, 989.5, 989.5, 1979, 1979),
    Rates("A100", "NVIDIA A100 Tensor Core GPU datasheet 1758950 r4 (June 2021)",
           19.5, 156, 312, 312, None, 624),
    Rates("A30", "NVIDIA A30 Tensor Core GPU datasheet (March 2022)",
           10.3, 82, 165, 165, None, 330),
    Rates("A10", "NVIDIA A10 Tensor Core GPU datasheet (March 2021)",
           31.2, 62.5, 125, 125, None, 250),
    Rates("L40S", "NVIDIA L40S datasheet (2023), halved where it prints two rates",
           91.6, 183, 362, 362, 733, 733),
    Rates("L40", "NVIDIA L40 datasheet (2022), halved where it prints two rates",
           90.5, 90.5, 181, 181, 362, 362),
    Rates("L4", "NVIDIA L4 Tensor Core GPU datasheet 2595652 (March 2023), halved",
           30.3, 60, 121, 121, 242.5, 242.5),
    Rates("T4", "NVIDIA T4 datasheet (March 2019)", 8.1, None, None, 65, None, 130),
    Rates("V100 PCIe", "NVIDIA V100 datasheet (January 2020), PCIe column",
           14, None, None, 112, None, None),
    Rates("V100", "NVIDIA V100 datasheet (January 2020), SXM2 column",
           15.7, None, None, 125, None, None),
)  # fmt: skip


def rates_of(name: str) -> Rates | None:
    """The rates of a device called `name` by NVML; None if the model is not in the table."""
    return next((one for one in RATES if has_words(name, one.key)), None)


def rated_tflops(name: str, precision: str) -> float | None:
    """The rated TFLOPS of a device called `name`; None if they are not known.

    Raises:
        ValueError: `precision` is not one of `PRECISIONS`.
    """
    found = rates_of(name)
    return found.at(precision) if found is not None else None


def has_words(name: str, key: str) -> bool:
    """Whether `key` occurs in `name` as whole words."""
    words = name.upper().replace("-", " ")
    return f" {key.upper()} " in f" {words} "
