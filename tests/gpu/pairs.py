"""The same program natively and under the shim, in turn, so that disturbances hit both equally."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.gpu.children import FailedError
from tests.gpu.rows import DiffersError, FailsNativelyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.gpu.setting import Setting

WAVERING = 0.01  # of a value that differs from one native run to the next
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
        FailsNativelyError: without the shim.
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
                try:
                    found[arm] = setting.native(argv, **variables)
                except FailedError as error:
                    raise FailsNativelyError(f"without the shim: {error}") from error
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


def check_wavering(native: dict[str, Any], again: dict[str, Any], shimmed: dict[str, Any]) -> str:
    """Compares results that are not the same with a second native run: is it the shim at all?

    Returns in words what may be said of them.

    Raises:
        DiffersError: natively twice the same, or too far from both.
    """
    told = [(one.get("digest"), float(one.get("value", 0))) for one in (native, again, shimmed)]
    seen = [f"{digest or 'a value'} ({value:.9g})" for digest, value in told]
    if told[0] == told[1]:
        raise DiffersError(f"natively twice {seen[0]}, under the shim {seen[2]}")
    low, high = sorted(value for _, value in told[:2])
    margin = max(high - low, WAVERING * max(abs(low), abs(high)))
    if not low - margin <= told[2][1] <= high + margin:
        raise DiffersError(
            f"natively {seen[0]}, then {seen[1]}; under the shim {seen[2]}, farther off than that"
        )
    return (
        f"cannot be compared bit for bit: natively {seen[0]}, then {seen[1]}; under the shim "
        f"{seen[2]}, as close as these"
    )


def added(
    seen: dict[str, list[dict[str, Any]]], arm: str, key: str, *, relative: bool = False
) -> Spread:
    """The difference of `arm` from the native `key` in each round; `relative`: in percent."""
    rounds = zip(seen["native"], seen[arm], strict=True)
    pairs = [(float(native[key]), float(other[key])) for native, other in rounds]
    if relative:
        return Spread.of([100 * (other - native) / native for native, other in pairs])
    return Spread.of([other - native for native, other in pairs])
