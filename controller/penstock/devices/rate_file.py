"""Rated TFLOPS of models in an operator's file, in place of the ones that Penstock knows.

X100:            # words of the name that the driver reports (penstock devices)
bf16: 500      # dense TFLOPS at a precision
fp32: 60
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.devices.rates import PRECISIONS, has_words
from penstock.model import PenstockError

if TYPE_CHECKING:
    from pathlib import Path

RateTable = Mapping[str, Mapping[str, float]]  # by words of the model's name, and precision
LEAST_TFLOPS, MOST_TFLOPS = 1.0, 1e6  # a card of less has no block
MOST_BYTES = 1 << 20


def read_rates(file: Path) -> RateTable:
    """The table in a file. Raises `PenstockError` if it cannot be read, or a rate is invalid."""
    import yaml

    try:
        with file.open("rb") as stream:
            return _table(yaml.safe_load(stream.read(MOST_BYTES)))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise PenstockError(
            f"the rated TFLOPS in {file} cannot be used", why or type(error).__name__,
            "write a model a key and a precision a line below it, such as bf16: 500",
        ) from error  # fmt: skip


def rate_in(table: RateTable, name: str, precision: str) -> float | None:
    """The rate of a device called `name`, by the longest key that its name has; None: no rate."""
    keys = sorted((key for key in table if has_words(name, key)), key=len)
    return table[keys[-1]].get(precision) if keys else None


def _table(document: object) -> RateTable:
    if not isinstance(document, dict) or not document:
        raise ValueError("it has no model")
    return {_model(name): _rates(name, rates) for name, rates in document.items()}


def _model(name: object) -> str:
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"{name!r} is no name of a model")
    return name.replace("-", " ").strip()


def _rates(name: object, rates: object) -> dict[str, float]:
    if not isinstance(rates, dict) or not rates:
        raise ValueError(f"{name} has no rate")
    return {_precision(name, word): _rate(name, word, rate) for word, rate in rates.items()}


def _precision(name: object, word: object) -> str:
    if word not in PRECISIONS:
        raise ValueError(f"{name}: unknown precision {word!r}: one of {', '.join(PRECISIONS)}")
    return str(word)


def _rate(name: object, word: object, rate: object) -> float:
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if not is_number or not LEAST_TFLOPS <= float(rate) <= MOST_TFLOPS:  # type: ignore[arg-type]
        raise ValueError(
            f"{name}, {word}: {rate!r} is not a number from {LEAST_TFLOPS:g} to {MOST_TFLOPS:g}"
        )
    return float(rate)  # type: ignore[arg-type]
