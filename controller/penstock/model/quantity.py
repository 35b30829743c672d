"""Exact parsers and formatters for quantities: bytes, permille of a device, and nanoseconds.

Memory is written as a Kubernetes quantity ("8Gi", "500M"), cores as a percentage of one device's
time in steps of 0.1 (30, "12.5"), and a duration with its unit ("10s", "1m30s").
"""

from __future__ import annotations

import math
import re
from decimal import ROUND_CEILING, Decimal

BINARY_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
DECIMAL_UNITS = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
MEMORY_UNITS = BINARY_UNITS | DECIMAL_UNITS
DURATION_UNITS_NS = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
FULL_DEVICE_PERMILLE = 1000
MAX_MEMORY_BYTES = 2**63 - 1
MOST_GRACE_NS = DURATION_UNITS_NS["h"] * 24  # the longest grace before the last enforcement step
LEAST_MEMORY_BYTES = 512  # the unit in which the shim counts memory

_NUMBER = re.compile(
    r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(.*?)\s*", re.ASCII | re.DOTALL
)
_UNIT_LIST = (
    f"{', '.join(BINARY_UNITS)} (powers of 1024), {', '.join(DECIMAL_UNITS)} (powers of 1000), "
    "or none for bytes"
)


class QuantityError(ValueError):
    """A quantity that cannot be parsed; the message states valid units and bounds."""


def _nearest_memory_unit(unit: str) -> str | None:
    """The valid unit that `unit` most likely means: GB → G, GiB → Gi, gi → Gi."""
    bare = unit.lower().removesuffix("b")
    for known in MEMORY_UNITS:
        if known.lower() == bare:
            return known
    return None


def parse_memory(value: object) -> int:
    """Bytes of a memory quantity such as "8Gi", "1.5G" or 1048576; fractions of a byte round up.

    Raises:
        QuantityError: the quantity is not a positive number with a known unit.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise QuantityError(f"memory {value!r} is not a quantity: write it like 8Gi or 500Mi")
    text = str(value)
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise QuantityError(f"memory {text!r} is not a quantity: write it like 8Gi or 500Mi")
    number, unit = Decimal(match[1]), match[2]
    if unit and unit not in MEMORY_UNITS:
        near = _nearest_memory_unit(unit)
        hint = f"; did you mean {match[1]}{near}?" if near else ""
        raise QuantityError(
            f"unknown unit {unit!r} in memory {text!r}: valid units are {_UNIT_LIST}{hint}"
        )
    if number <= 0:
        raise QuantityError(f"memory {text!r} must be above 0")
    # Checked before the multiplication so that "1e999" does not become a number of 1,000 digits.
    if number > MAX_MEMORY_BYTES or number * MEMORY_UNITS.get(unit, 1) > MAX_MEMORY_BYTES:
        raise QuantityError(f"memory {text!r} is more than any device can have")
    return int((number * MEMORY_UNITS.get(unit, 1)).to_integral_value(ROUND_CEILING))


def format_memory(size_bytes: int) -> str:
    """The shortest exact quantity: `parse_memory(format_memory(n)) == n` for every n above 0."""
    for units in (BINARY_UNITS, DECIMAL_UNITS):
        for unit, factor in reversed(units.items()):
            if size_bytes and size_bytes % factor == 0:
                return f"{size_bytes // factor}{unit}"
    return str(size_bytes)


def human_memory(size_bytes: int, *, down: bool = False) -> str:
    """A quantity rounded for tables, such as "7.9Gi" or "512Mi"; never use it in files.

    With `down`, the value is rounded down, for quantities that users may request.
    """
    for unit, factor in (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if size_bytes >= factor:
            amount = size_bytes / factor
            if down:
                amount = size_bytes // factor if amount >= 100 else size_bytes * 10 // factor / 10
            return (
                f"{amount:.0f}{unit}"
                if amount >= 100 or amount == int(amount)
                else f"{amount:.1f}{unit}"
            )
    return f"{size_bytes}B"


def parse_cores(value: object) -> int:
    """Permille of one device's time for a percentage such as 30, 12.5, "30" or "30%".

    Raises:
        QuantityError: the percentage is outside 0 < cores ≤ 100, or finer than 0.1.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise QuantityError(f"cores {value!r} is not a percentage: write it like 30 or 12.5")
    text = str(value)
    match = _NUMBER.fullmatch(text)
    if match is None or match[2] not in ("", "%"):
        unit = f" (unknown unit {match[2]!r}: valid is % or none)" if match else ""
        raise QuantityError(f"cores {text!r} is not a percentage{unit}: write it like 30 or 12.5")
    percent = Decimal(match[1])
    if percent <= 0:
        raise QuantityError(
            f"cores {text!r} must be above 0 and at most 100 (percent of one device)"
        )
    if percent > 100:
        raise QuantityError(
            f"cores {text!r} is more than a whole device: cores go from 0.1 to 100 (percent of one "
            "device); for more, request more devices"
        )
    permille = percent * 10
    if permille != permille.to_integral_value():
        raise QuantityError(f"cores {text!r} is finer than the step of 0.1")
    return int(permille)


def format_cores(permille: int) -> str:
    """Percent without a trailing ".0": 300 → "30", 125 → "12.5"."""
    return f"{permille // 10}" if permille % 10 == 0 else f"{permille // 10}.{permille % 10}"


def cores_from_tflops(tflops: float, rated_tflops: float) -> int:
    """Permille of a device with `rated_tflops` that yields `tflops`, rounded up to whole percents.

    Raises:
        QuantityError: the device is too small.
    """
    if not math.isfinite(tflops) or tflops <= 0:
        raise QuantityError(f"tflops {tflops!r} must be a number above 0")
    wanted, rated = Decimal(str(tflops)), Decimal(str(rated_tflops))
    if wanted > rated:
        raise QuantityError(
            f"tflops {tflops:g} is more than the {rated_tflops:g} TFLOPS of the device"
        )
    return int((wanted * 100 / rated).to_integral_value(ROUND_CEILING)) * 10


def parse_duration_ns(value: object, *, or_none: bool = False) -> int:
    """Nanoseconds of a duration such as "10s", "500ms" or "1m30s".

    With `or_none`, 0 is allowed, with or without a unit.

    Raises:
        QuantityError: `value` is not a valid duration.
    """
    units = ", ".join(DURATION_UNITS_NS)
    text = str(value).strip()
    if isinstance(value, bool) or not isinstance(value, (int, float, str)) or not text:
        raise QuantityError(f"duration {value!r} is not a time: write it like 10s or 1m30s")
    if or_none and text == "0":
        return 0
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([A-Za-zµ]*)\s*", text, re.ASCII)
    if "".join(n + u for n, u in parts) != "".join(text.split()):
        raise QuantityError(f"duration {text!r} is not a time: write it like 10s or 1m30s")
    total = Decimal(0)
    for number, unit in parts:
        if unit not in DURATION_UNITS_NS:
            named = f"unknown unit {unit!r}" if unit else "no unit"
            is_alone = not unit and len(parts) == 1 and Decimal(number) > 0
            meant = f"; did you mean {number}s?" if is_alone else ""
            raise QuantityError(f"{named} in duration {text!r}: valid units are {units}{meant}")
        total += Decimal(number) * DURATION_UNITS_NS[unit]
    if total <= 0 and not or_none:
        raise QuantityError(f"duration {text!r} must be above 0")
    if total > MAX_MEMORY_BYTES:
        raise QuantityError(f"duration {text!r} is too long")
    return int(total.to_integral_value(ROUND_CEILING))


def parse_grace_ns(value: object) -> int:
    """Nanoseconds of the grace before an enforcement step, 0 to a day. Raises `QuantityError`."""
    grace_ns = parse_duration_ns(value, or_none=True)
    if grace_ns > MOST_GRACE_NS:
        raise QuantityError(f"grace {value!r} is longer than a day: give 0s to 24h")
    return grace_ns


def format_duration(duration_ns: int) -> str:
    """The exact duration in the largest unit that divides it: 90·10⁹ → "90s", 120·10⁹ → "2m"."""
    for unit, factor in reversed(DURATION_UNITS_NS.items()):
        if duration_ns % factor == 0:
            return f"{duration_ns // factor}{unit}"
    return f"{Decimal(duration_ns) / 10**6}ms"
