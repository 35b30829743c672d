"""Policy bounds: the strictest value of each setting in the QuotaPolicies that hold for a Pod.

So an additional label, annotation or policy never allows a Pod more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from penstock.model import PenstockError
from penstock.model.limits import STEPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.kube.quota.policies import Policy
    from penstock.model.limits import Mode, Step

_Amount = TypeVar("_Amount", int, float)


@dataclass(frozen=True)
class Bound:
    """The bound of each device's share: maximum and default quantities, and what follows on excess.

    None: not bounded.
    """

    name: str  # for the middle of a sentence: "QuotaPolicy team/small"
    memory_bytes: int | None
    cores_permille: int | None
    tflops: float | None
    count: int  # of devices
    mode: Mode
    measured: Step
    grace_ns: int

    def __str__(self) -> str:
        return self.name

    @property
    def has_compute(self) -> bool:
        """Whether it bounds compute, in either unit."""
        return self.cores_permille is not None or self.tflops is not None


def bound_of(policies: Sequence[Policy]) -> Bound | None:
    """The strictest bound of all policies that hold for one Pod; None: there is no policy.

    Raises:
        PenstockError: the strictest is undefined: a policy is not valid, or they bound compute in
            different units.
    """
    if not policies:
        return None
    for one in policies:
        if one.spec is None:
            raise PenstockError(
                f"{one} is not valid", one.problem, "correct it; kubectl describe shows this, too"
            )
    specs = [one.spec for one in policies if one.spec is not None]
    cores = _least(one.limits.cores for one in specs)
    tflops = _least(one.limits.tflops for one in specs)
    names = ", ".join(sorted(f"{one.namespace}/{one.name}" for one in policies))
    if cores is not None and tflops is not None:
        raise PenstockError(
            f"QuotaPolicies {names} hold for this Pod and bound compute in cores and in TFLOPS",
            "which of them is stricter depends on the device that the Pod gets",
            "have them bound it in the same unit, or narrow their selectors",
        )  # fmt: skip
    return Bound(
        name=str(policies[0]) if len(policies) == 1 else f"the strictest of QuotaPolicies {names}",
        memory_bytes=_least(one.limits.memory for one in specs),
        cores_permille=cores,
        tflops=tflops,
        count=min(one.devices.count for one in specs),
        mode="strict" if any(one.mode == "strict" for one in specs) else "elastic",
        measured=max((one.on_exceed.measured for one in specs), key=STEPS.index),
        grace_ns=min(one.on_exceed.grace for one in specs),
    )


def _least(several: Iterable[_Amount | None]) -> _Amount | None:
    return min((one for one in several if one is not None), default=None)
