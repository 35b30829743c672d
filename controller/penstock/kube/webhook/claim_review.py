"""Claim review: refuses capacities that no device has, and parameters that users may not set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kube.objects.api_client import ApiError
from penstock.kube.objects.names import CORES_PERMILLE, MEMORY
from penstock.kube.objects.opaque_parameters import milder_than
from penstock.kube.objects.quantity import parse_quantity
from penstock.kube.objects.resource_request import LEAST_MEMORY_BYTES
from penstock.kube.webhook.author_warnings import more_devices
from penstock.kube.webhook.review_context import asked_devices
from penstock.kube.webhook.verdict import Verdict
from penstock.model import PenstockError, QuantityError, human_memory, nearest
from penstock.model.quantity import FULL_DEVICE_PERMILLE, MAX_MEMORY_BYTES
from penstock.policy.resolve import Settings

if TYPE_CHECKING:
    from penstock.kube.objects.api_client import Object
    from penstock.kube.webhook.review_context import ReviewContext

CAPACITIES = (MEMORY, CORES_PERMILLE)


async def review_claim(
    spec: Object, around: ReviewContext, floor: Settings | None = None
) -> Verdict:
    """Reviews a claim's spec. `floor` is the mildest `onExceed` that users may set.

    Raises:
        ApiError: the claim's device classes cannot be looked up.
    """
    verdict = Verdict()
    try:
        ours = await around.ours_of(spec)
    except ApiError:
        raise
    except PenstockError as error:
        verdict.refuse_for(error)
        return verdict
    for one in asked_devices(spec):
        if one.get("deviceClassName") not in ours:
            continue
        where = f"request {one.get('name')}"
        if one.get("adminAccess"):
            verdict.refuse(
                f"{where} has adminAccess", "shares of devices do not support it",
                "leave adminAccess out",
            )  # fmt: skip
        verdict.warnings += more_devices(where, _count(one), around.most_devices())
        for name, value in ((one.get("capacity") or {}).get("requests") or {}).items():
            _capacity(where, name, value, around, verdict)
    if ours:
        await _parameters(spec, around, floor or Settings(), verdict)
    return verdict


def _count(one: Object) -> int:
    """The number of devices requested; 1 for a request of all devices."""
    count = one.get("count")
    return count if one.get("allocationMode") != "All" and isinstance(count, int) else 1


async def _parameters(
    spec: Object, around: ReviewContext, floor: Settings, verdict: Verdict
) -> None:
    try:
        found = await around.parameters(spec)
    except ApiError:
        raise
    except PenstockError as error:  # a claim cannot change, so it would fail on its node later
        verdict.refuse_for(error)
        return
    refused = set()
    for said in found:
        # Administrators write the class, so its parameters override the chart's values.
        refused |= set(milder_than(said.by_claim, said.by_class.over(floor)))
    for what, most in sorted(refused):
        verdict.refuse(
            f"the claim's parameters set {what}",
            f"administrators of this cluster allow {most}",
            "leave it out, or ask for a DeviceClass or a QuotaPolicy that sets it",
        )


def _capacity(
    where: str, name: str, value: object, around: ReviewContext, verdict: Verdict
) -> None:
    what = f"{where} requests capacity {name}: {value}"
    if name not in CAPACITIES:
        near = nearest(name, CAPACITIES) or (CORES_PERMILLE if name == "cores" else None)
        fix = f"did you mean {near}?" if near else f"use {' or '.join(CAPACITIES)}"
        verdict.refuse(what, "devices have no such capacity", fix)
        return
    try:
        exact = parse_quantity(value)
    except QuantityError as error:
        verdict.refuse(what, str(error), "write it like 40Gi or 300")
        return
    if exact <= 0:
        verdict.refuse(what, "it must be greater than zero", f"request more, or leave {name} out")
    elif name == CORES_PERMILLE and (exact > FULL_DEVICE_PERMILLE or exact.denominator != 1):
        verdict.refuse(
            what, f"it must be a whole number of permille, 1 to {FULL_DEVICE_PERMILLE}",
            "for more than one device request a count",
        )  # fmt: skip
    elif name == MEMORY and exact < LEAST_MEMORY_BYTES:
        fix = f"write it with its unit, such as {value}Gi"
        verdict.refuse(what, f"that is only {exact} bytes", fix)
    elif name == MEMORY and exact > MAX_MEMORY_BYTES:  # the scheduler would count it as zero
        verdict.refuse(what, f"the maximum is {MAX_MEMORY_BYTES} bytes", "request less")
    elif name == MEMORY and (largest := around.largest()) and exact > largest[0]:
        verdict.warnings.append(
            f"{where} requests more memory than any device here has "
            f"({human_memory(largest[0], down=True)}): it waits for a node that has it"
        )
