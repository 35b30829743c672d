"""Quantity bounds: applies the limits of QuotaPolicies to the quantities that Pods request.

A policy's limits are the maximum of each device's share, and the default for a Pod that requests no
quantity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kube.objects.claim_defaults import usual_cores_permille, usual_memory_bytes
from penstock.kube.objects.names import (
    CORES_PERMILLE,
    MEMORY,
    RESOURCE_CORES,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
    RESOURCE_TFLOPS,
)
from penstock.kube.objects.quantity import parse_quantity
from penstock.kube.objects.resource_request import asked
from penstock.kube.webhook.review_context import asked_devices
from penstock.model import QuantityError, human_memory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from penstock.kube.objects.api_client import Object
    from penstock.kube.quota.policy_bounds import Bound
    from penstock.kube.webhook.verdict import Verdict
    from penstock.scheduling.placement.pod_request import Ask


def bound_asks(asks: Iterable[Ask], bound: Bound, verdict: Verdict) -> None:
    """Refuses shares by extended resources that are larger than the policy's limits."""
    for ask in asks:
        who = f"container {ask.container}"
        for name, amount, most in (
            (RESOURCE_MEMORY, ask.memory_bytes, bound.memory_bytes),
            (RESOURCE_CORES, ask.cores_permille, bound.cores_permille),
        ):
            if amount is not None and most is not None and amount > most:
                _refuse(who, name, amount, most, bound=bound, verdict=verdict)
        if ask.tflops is not None and bound.tflops is not None and ask.tflops > bound.tflops:
            verdict.refuse(
                f"{who} requests {RESOURCE_TFLOPS}: {ask.tflops}",
                f"{bound} allows at most {bound.tflops:g} of each device",
                "request that or less, or leave it out",
            )
        for wrong, right, said, other in (
            (RESOURCE_TFLOPS, RESOURCE_CORES, ask.tflops, bound.cores_permille),
            (RESOURCE_CORES, RESOURCE_TFLOPS, ask.cores_permille, bound.tflops),
        ):
            if said is not None and other is not None:
                verdict.refuse(
                    f"{who} requests {wrong}",
                    f"{bound} bounds {right}, and the ratio of the two units depends on the "
                    "device, which is not known yet",
                    f"request {right}, or leave it out",
                )


def bound_claim(
    name: str,
    spec: Object,
    bound: Bound,
    *,
    ours: Collection[str],
    largest_bytes: int | None,
    verdict: Verdict,
) -> None:
    """Refuses claims that exceed the policy; omitted quantities count as an eighth of the device.

    `ours` contains our device classes. `largest_bytes` is the memory of the cluster's largest
    device, or None if not known.
    """
    usual = {
        MEMORY: None if largest_bytes is None else usual_memory_bytes(largest_bytes),
        CORES_PERMILLE: usual_cores_permille(),
    }
    for one in asked_devices(spec):
        if one.get("deviceClassName") not in ours:
            continue
        who = f"claim {name}, request {one['reference']},"
        said = (one.get("capacity") or {}).get("requests") or {}
        for name_of, most in ((MEMORY, bound.memory_bytes), (CORES_PERMILLE, bound.cores_permille)):
            if most is None:
                continue
            amount = _whole(said.get(name_of))
            if name_of not in said and (gets := usual[name_of]) is None:
                verdict.warnings.append(
                    f"{who} does not set {name_of}: it gets an eighth of the device, and its Pod "
                    "cannot start on a device where that is more than "
                    f"{bound} allows ({_shown(name_of, most)})"
                )
            elif name_of not in said and gets is not None and gets > most:
                verdict.refuse(
                    f"{who} does not set {name_of}, and would get an eighth of the device",
                    f"{bound} allows at most {_shown(name_of, most)} of each device",
                    f"set {name_of} in the claim to {_shown(name_of, most)} or less",
                )
            elif amount is not None and amount > most:
                _refuse(who, name_of, amount, most, bound=bound, verdict=verdict)


def filled(container: Object, bound: Bound | None) -> dict[str, str]:
    """Values of `bound` for resources that a container omits; none for a container without vGPU."""
    wanted = asked(container)
    if not wanted:
        return {}
    found = {}
    if RESOURCE_COUNT not in wanted:
        found[RESOURCE_COUNT] = str(bound.count if bound else 1)
    if bound is None:
        return found
    if bound.memory_bytes is not None and RESOURCE_MEMORY not in wanted:
        found[RESOURCE_MEMORY] = str(bound.memory_bytes)
    if RESOURCE_CORES not in wanted and RESOURCE_TFLOPS not in wanted:
        if bound.cores_permille is not None:
            found[RESOURCE_CORES] = str(bound.cores_permille)
        elif bound.tflops is not None and bound.tflops >= 1:  # resources are whole numbers
            found[RESOURCE_TFLOPS] = str(int(bound.tflops))
    return found


def _refuse(who: str, name: str, said: int, most: int, *, bound: Bound, verdict: Verdict) -> None:
    verdict.refuse(
        f"{who} requests {name}: {_shown(name, said)}",
        f"{bound} allows at most {_shown(name, most)} of each device",
        f"request {_shown(name, most)} or less, or have the policy changed",
    )


def _shown(name: str, amount: int) -> str:
    return human_memory(amount) if name in {RESOURCE_MEMORY, MEMORY} else str(amount)


def _whole(value: object) -> int | None:
    """The value as an integer; None if absent, or malformed, which the claim review refuses."""
    try:
        return None if value is None else int(parse_quantity(value))
    except QuantityError:
        return None
