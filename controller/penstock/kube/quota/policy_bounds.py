"""Policy bounds: the strictest value of each setting in the QuotaPolicies that apply to a Pod.

Because the strictest value wins, an additional label, annotation or policy never allows a Pod more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from penstock.model import PenstockError
from penstock.policy.resolve import Settings, strictest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.kube.quota.policies import Policy
    from penstock.model.terms import Mode

_Amount = TypeVar("_Amount", int, float)


@dataclass(frozen=True)
class Bound:
    """The bound of each device's share: maximum and default quantities, and the enforcement.

    A quantity of None is not bounded.
    """

    name: str  # for the middle of a sentence: "QuotaPolicy team/small"
    memory_bytes: int | None
    cores_permille: int | None
    tflops: float | None
    count: int  # of devices
    mode: Mode
    floor: Settings  # the mildest enforcement allowed when a quota is exceeded

    def __str__(self) -> str:
        return self.name

    @property
    def has_compute(self) -> bool:
        """Whether it bounds compute, in cores or TFLOPS."""
        return self.cores_permille is not None or self.tflops is not None


def bound_of(policies: Sequence[Policy]) -> Bound | None:
    """The strictest bound of all policies that apply to one Pod; None if there is no policy.

    Raises:
        PenstockError: the strictest bound is undefined, because a policy is not valid or the
            policies bound compute in different units.
    """
    if not policies:
        return None
    for one in policies:
        if one.spec is None:
            raise PenstockError(
                f"{one} is not valid", one.problem, "correct it (see kubectl describe quotapolicy)"
            )
    specs = [one.spec for one in policies if one.spec is not None]
    cores = _least(one.limits.cores for one in specs)
    tflops = _least(one.limits.tflops for one in specs)
    names = ", ".join(sorted(f"{one.namespace}/{one.name}" for one in policies))
    if cores is not None and tflops is not None:
        raise PenstockError(
            f"QuotaPolicies {names} apply to this Pod and bound compute in both cores and TFLOPS",
            "which bound is stricter depends on the device that the Pod gets",
            "use the same unit in all of them, or narrow their selectors",
        )  # fmt: skip
    return Bound(
        name=str(policies[0]) if len(policies) == 1 else f"the strictest of QuotaPolicies {names}",
        memory_bytes=_least(one.limits.memory for one in specs),
        cores_permille=cores,
        tflops=tflops,
        count=min(one.devices.count for one in specs),
        mode="strict" if any(one.mode == "strict" for one in specs) else "elastic",
        floor=Settings(
            measured=strictest(*(one.on_exceed.measured for one in specs)),
            grace_ns=min(one.on_exceed.grace for one in specs),
        ),
    )


def _least(several: Iterable[_Amount | None]) -> _Amount | None:
    return min((one for one in several if one is not None), default=None)
