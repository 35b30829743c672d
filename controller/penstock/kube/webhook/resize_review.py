"""Resize review: checks the resize annotation of a running Pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kube.objects.names import PLACED, RESIZE
from penstock.kube.objects.placement import read_placement
from penstock.kube.objects.resize_annotation import CLAIMS_DO_NOT_CHANGE, read_resize, resized
from penstock.kube.objects.resource_request import asked, containers
from penstock.kube.webhook.policy_warnings import bound_for
from penstock.kube.webhook.verdict import Verdict
from penstock.model import (
    PenstockError,
    QuantityError,
    cores_from_tflops,
    format_cores,
    human_memory,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.kube.objects.api_client import Object
    from penstock.kube.objects.node_devices import NodeDevice
    from penstock.kube.objects.placement import Placement
    from penstock.kube.quota.policy_bounds import Bound
    from penstock.kube.webhook.review_context import ReviewContext
    from penstock.model.share import Share


async def review_resize(old: Object, new: Object, namespace: str, around: ReviewContext) -> Verdict:
    """Reviews the resize of a Pod. Raises `ApiError` if related objects cannot be looked up."""
    verdict = Verdict()
    annotations = (new.get("metadata") or {}).get("annotations") or {}
    before = ((old.get("metadata") or {}).get("annotations") or {}).get(RESIZE)
    text = annotations.get(RESIZE)
    if text is None or text == before:
        return verdict
    if not any(asked(one) for one, _, _ in containers(new)):
        if (await around.claims_of(new, namespace)).ours:
            verdict.warnings.append(CLAIMS_DO_NOT_CHANGE)
        else:
            what = f"annotation {RESIZE} is not allowed"
            verdict.refuse(what, "the Pod has no vGPU", "leave it out")
        return verdict
    if not annotations.get(PLACED):
        verdict.refuse(
            f"annotation {RESIZE} is not allowed yet",
            "the Pod has no device yet, so nothing can grow or shrink",
            "wait until the Pod is placed, or create it again with other limits",
        )  # fmt: skip
        return verdict
    try:
        placement = read_placement(annotations[PLACED])
        after = resized(placement, read_resize(text))
        devices = around.devices_of((new.get("spec") or {}).get("nodeName") or "")
        for one in _larger_than(placement, after, devices):
            verdict.refuse(*one)
        bound = bound_for(new, namespace, around, verdict)
        for one in _beyond(placement, after, devices, bound) if bound else ():
            verdict.refuse(*one)
    except PenstockError as error:
        if getattr(error, "is_passing", False):
            raise
        verdict.refuse_for(error)
    return verdict


def _growing(before: Placement, after: Placement) -> Iterator[tuple[str, str, Share, Share]]:
    """Yields container, device, current share and requested share of each share that changes."""
    for container, shares in after.items():
        for uuid, share in shares.items():
            was = before[container][uuid]
            if share != was:
                yield container, uuid, was, share


def _larger_than(
    before: Placement, after: Placement, devices: dict[str, NodeDevice]
) -> Iterator[tuple[str, str, str]]:
    for container, uuid, _, share in _growing(before, after):
        device = devices.get(uuid)
        if device is not None and share.memory_bytes > device.memory_bytes:
            most = human_memory(device.memory_bytes, down=True)
            yield (
                f"container {container} requests {human_memory(share.memory_bytes)} of {uuid}",
                f"the device has {most}", "request less: a running Pod keeps its devices",
            )  # fmt: skip


def _beyond(
    before: Placement, after: Placement, devices: dict[str, NodeDevice], bound: Bound
) -> Iterator[tuple[str, str, str]]:
    """Yields shares that would grow beyond the policy, which an older share may exceed already."""
    for container, uuid, was, share in _growing(before, after):
        cores = bound.cores_permille
        device = devices.get(uuid)
        if bound.tflops is not None and device is not None and device.tflops:
            try:
                cores = cores_from_tflops(bound.tflops, device.tflops)
            except QuantityError:  # more than the device has
                cores = None
        fix = "request less, or change the policy"
        most_bytes = bound.memory_bytes
        if most_bytes is not None and share.memory_bytes > max(was.memory_bytes, most_bytes):
            yield (
                f"container {container} requests {human_memory(share.memory_bytes)} of a device",
                f"{bound} allows {human_memory(most_bytes, down=True)}", fix,
            )  # fmt: skip
        if cores is not None and share.cores_permille > max(was.cores_permille, cores):
            yield (
                f"container {container} requests {format_cores(share.cores_permille)} % of time",
                f"{bound} allows {format_cores(cores)} %", fix,
            )  # fmt: skip
