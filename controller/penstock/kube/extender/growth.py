"""Resize step of a running Pod: the placement to write, and the shares to reserve for it.

The Pod keeps its devices. A change is made completely or not at all. All functions here are pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.kube.objects.placement import at_most
from penstock.kube.objects.resize_annotation import read_resize, resized
from penstock.model import PenstockError, format_cores, human_memory
from penstock.model.share import NOTHING, Share
from penstock.scheduling.placement.pod_request import totals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.kube.extender.ledger import SeenPod
    from penstock.kube.objects.placement import Placement
    from penstock.scheduling.placement.device_state import Node


@dataclass(frozen=True)
class Step:
    """The change from one placement to the next."""

    placement: Placement
    held: Placement  # larger shares that stay in force until the node has shrunk them, if any
    more: Mapping[str, Share]  # shares that must be free before the change, by device UUID


def step_of(pod: SeenPod, node: Node) -> Step | None:
    """The step to the requested size; None if the Pod has it already, or requests no resize.

    Raises:
        PenstockError: a device has less free than requested (`not-enough-left`), or the
            annotation is invalid.
    """
    running = pod.running
    if running is None or not running.asked:
        return None
    after = resized(running.placement, read_resize(running.asked))
    if after == running.placement:
        return None
    before = at_most(running.placement, running.held)
    either = at_most(after, before)
    more = {}
    for uuid, share in totals(either, running.roles).items():
        was = pod.shares.get(uuid, NOTHING)
        extra = Share(
            share.memory_bytes - was.memory_bytes, share.cores_permille - was.cores_permille
        )
        if extra != NOTHING:
            _check_free(uuid, extra, node.left(uuid))
            more[uuid] = extra
    return Step(after, {} if either == after else before, more)


def _check_free(uuid: str, extra: Share, left: Share | None) -> None:
    if left is None:
        raise PenstockError(
            f"device {uuid} has nothing free", "it is missing or not healthy",
            "run penstock devices on its node; the resize is retried", reason="not-enough-left",
        )  # fmt: skip
    short = [
        f"has {said(max(0, free))} free, {said(asked)} more were requested"
        for asked, free, said in (
            (extra.memory_bytes, left.memory_bytes, _memory),
            (extra.cores_permille, left.cores_permille, _cores),
        )
        if asked > max(0, free)
    ]
    if short:
        raise PenstockError(
            f"device {uuid} {' and '.join(short)}", "the Pod keeps the share that it has",
            "request less, or end other Pods; the resize is retried when more is free",
            reason="not-enough-left",
        )  # fmt: skip


def _memory(amount_bytes: int) -> str:
    return human_memory(amount_bytes) if amount_bytes else "0"


def _cores(permille: int) -> str:
    return f"{format_cores(permille)} % of its time"
