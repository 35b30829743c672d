"""The same program natively and under the shim, in turn, so that what disturbs hits both alike."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.gpu.rows import DiffersError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.gpu.setting import Setting

ARMS: dict[str, float | None] = {"native": None, "idle": 100.0, "gated": 99.0}
"""Arm → cores granted, percent; None: without the shim. `idle`: the gate stands open."""


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(low, median, high)

    def words(self, unit: str, digits: int = 1) -> str:
        """As people read it: 12.0 us (11.5 to 12.8)."""
        return f"{self.median:.{digits}f} {unit} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def interleaved(
    setting: Setting,
    argv: Sequence[str],
    rounds: int,
    arms: Sequence[str] = tuple(ARMS),
    **variables: str,
) -> dict[str, list[dict[str, Any]]]:
    """The program's results, arm by arm, each arm once a round; the order changes every round.

    Raises:
        FailedError, HungError: an arm failed. What whole rounds gave before is not lost: where the
            time runs out after one, that is what is returned.
    """
    seen: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    longest = 0.0
    for number in range(rounds):
        before = setting.left_s()
        if number and before < 1.3 * longest:
            break
        found = {}
        for arm in arms if number % 2 == 0 else tuple(reversed(arms)):
            cores = ARMS[arm]
            if cores is None:
                found[arm] = setting.native(argv, **variables)
            else:
                found[arm] = setting.shimmed(argv, cores=cores, **variables)
        for arm, result in found.items():
            seen[arm].append(result)
        longest = max(longest, before - setting.left_s())
    return seen


def check_same(
    native: dict[str, Any], shimmed: dict[str, Any], *, tolerance: float | None = None
) -> str:
    """Compares two results of a program by what it says of itself.

    A program that is deterministic prints a `digest` of all that it computed; others a `value` that
    may differ by `tolerance` of it. Returns in words what was the same.

    Raises:
        DiffersError: it was not.
    """
    if native.get("digest") is not None and tolerance is None:
        if native["digest"] != shimmed.get("digest"):
            raise DiffersError(f"native {native['digest']}, under the shim {shimmed.get('digest')}")
        return "bit for bit the same"
    wanted, got = float(native["value"]), float(shimmed["value"])
    allowed = abs(wanted) * (tolerance or 0)
    if not abs(wanted - got) <= allowed:
        raise DiffersError(f"native {wanted:g}, under the shim {got:g}, allowed {allowed:g}")
    return f"the same within {tolerance or 0:.0%}" if tolerance else "the same"


def added(
    seen: dict[str, list[dict[str, Any]]], arm: str, key: str, *, relative: bool = False
) -> Spread:
    """What `arm` adds to the native figure `key`, inside each round; `relative`: in percent."""
    rounds = zip(seen["native"], seen[arm], strict=True)
    pairs = [(float(native[key]), float(other[key])) for native, other in rounds]
    if relative:
        return Spread.of([100 * (other - native) / native for native, other in pairs])
    return Spread.of([other - native for native, other in pairs])
