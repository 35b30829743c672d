"""What the QuotaPolicy that holds for a Pod makes of its amounts.

Requests set amounts; a policy's limits are the most that each device's share may be, and what a
share is of which nothing is said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kube.admit.surroundings import asked_devices
from penstock.kube.names import (
    CORES_PERMILLE,
    MEMORY,
    RESOURCE_CORES,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
    RESOURCE_TFLOPS,
)
from penstock.kube.quantity import parse_quantity
from penstock.kube.request import asked
from penstock.model import QuantityError, human_memory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from penstock.kube.admit.verdict import Verdict
    from penstock.kube.api import Object
    from penstock.kube.control.policies import Policy
    from penstock.policy.schema import Limits, Spec
    from penstock.schedule.ask import Ask


def bound_asks(asks: Iterable[Ask], policy: Policy, limits: Limits, verdict: Verdict) -> None:
    """Refuses shares by extended resources that are larger than the policy's limits."""
    for ask in asks:
        who = f"container {ask.container}"
        for name, amount, bound in (
            (RESOURCE_MEMORY, ask.memory_bytes, limits.memory),
            (RESOURCE_CORES, ask.cores_permille, limits.cores),
        ):
            if amount is not None and bound is not None and amount > bound:
                _refuse(who, name, amount, bound, policy=policy, verdict=verdict)
        if ask.tflops is not None and limits.tflops is not None and ask.tflops > limits.tflops:
            verdict.refuse(
                f"{who} asks for {RESOURCE_TFLOPS}: {ask.tflops}",
                f"{policy} allows at most {limits.tflops:g} of each device",
                "ask for that or less, or leave it out",
            )
        for wrong, right, said, other in (
            (RESOURCE_TFLOPS, RESOURCE_CORES, ask.tflops, limits.cores),
            (RESOURCE_CORES, RESOURCE_TFLOPS, ask.cores_permille, limits.tflops),
        ):
            if said is not None and other is not None:
                verdict.refuse(
                    f"{who} asks for {wrong}",
                    f"{policy} bounds {right}, and how much that is of a device depends on which "
                    "one it will be",
                    f"ask for {right}, or leave it out",
                )


def bound_claim(
    name: str,
    spec: Object,
    policy: Policy,
    limits: Limits,
    *,
    ours: Collection[str],
    verdict: Verdict,
) -> None:
    """The same of a claim; amounts that it leaves out are the device's own default.

    `ours`: device classes.
    """
    for one in asked_devices(spec):
        if one.get("deviceClassName") not in ours:
            continue
        who = f"claim {name}, request {one['reference']},"
        said = (one.get("capacity") or {}).get("requests") or {}
        unsaid = []
        for name_of, bound in ((MEMORY, limits.memory), (CORES_PERMILLE, limits.cores)):
            if bound is None:
                continue
            amount = _whole(said.get(name_of))
            if name_of not in said:
                unsaid.append(name_of)
            elif amount is not None and amount > bound:
                _refuse(who, name_of, amount, bound, policy=policy, verdict=verdict)
        if unsaid:
            verdict.warnings.append(
                f"{who} says no {' and no '.join(unsaid)}: it gets an eighth of the device, "
                f"whatever {policy} allows"
            )


def filled(container: Object, spec: Spec | None) -> dict[str, str]:
    """What a container with a share leaves out, as the policy `spec` has it; nothing of others."""
    wanted = asked(container)
    if not wanted:
        return {}
    found = {}
    if RESOURCE_COUNT not in wanted:
        found[RESOURCE_COUNT] = str(spec.devices.count if spec else 1)
    if spec is None:
        return found
    limits = spec.limits
    if limits.memory is not None and RESOURCE_MEMORY not in wanted:
        found[RESOURCE_MEMORY] = str(limits.memory)
    if RESOURCE_CORES not in wanted and RESOURCE_TFLOPS not in wanted:
        if limits.cores is not None:
            found[RESOURCE_CORES] = str(limits.cores)
        elif limits.tflops is not None and limits.tflops >= 1:  # resources are whole numbers
            found[RESOURCE_TFLOPS] = str(int(limits.tflops))
    return found


def _refuse(
    who: str, name: str, said: int, bound: int, *, policy: Policy, verdict: Verdict
) -> None:
    is_memory = name in {RESOURCE_MEMORY, MEMORY}
    shown, most = (human_memory(said), human_memory(bound)) if is_memory else (said, bound)
    verdict.refuse(
        f"{who} asks for {name}: {shown}",
        f"{policy} allows at most {most} of each device",
        f"ask for {most} or less, or have the policy changed",
    )


def _whole(value: object) -> int | None:
    """None where it is not said, or is nonsense: that is refused with the claim itself."""
    try:
        return None if value is None else int(parse_quantity(value))
    except QuantityError:
        return None
