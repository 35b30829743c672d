"""Parsing of Kubernetes quantities ("40Gi", "100m", "1e3") into exact numbers."""

from __future__ import annotations

import re
from fractions import Fraction

from penstock.model.quantity import BINARY_UNITS, DECIMAL_UNITS, QuantityError

_FORM = re.compile(
    r"([+-]?(?:\d{1,40}\.?\d{0,40}|\.\d{1,40}))(?:[eE]([+-]?\d{1,2})|([A-Za-z]*))", re.ASCII
)
_SMALL = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1)}
_UNITS = {
    **_SMALL,
    **{unit: Fraction(factor) for unit, factor in {**BINARY_UNITS, **DECIMAL_UNITS}.items()},
    "Ei": Fraction(2**60),
    "E": Fraction(10**18),
}


def parse_quantity(value: object) -> Fraction:
    """Parses a Kubernetes quantity into an exact number. Raises `QuantityError`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return Fraction(value)
    match = _FORM.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise QuantityError(f"{value!r} is not a quantity: write it like 40Gi or 300")
    number, exponent, unit = match.groups()
    if exponent:
        return Fraction(number) * Fraction(10) ** int(exponent)
    factor = _UNITS.get(unit or "")
    if factor is None:
        raise QuantityError(f"unknown unit {unit!r} in the quantity {value!r}")
    return Fraction(number) * factor


def parse_whole(value: object) -> int:
    """Parses a quantity, rounded up as Kubernetes does. Raises `QuantityError`."""
    exact = parse_quantity(value)
    return -(-exact.numerator // exact.denominator)
