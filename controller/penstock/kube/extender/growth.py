"""Resize step of a running Pod: the placement to write, and the shares to reserve for it.

Pure. The Pod keeps its devices. A change is made completely or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.kube.objects.placement import at_most
from penstock.kube.objects.resize_annotation import read_resize, resized
from penstock.model import PenstockError, format_cores, human_memory
from penstock.scheduling.placement.device_state import NOTHING, Share
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
    held: Placement  # what may stay in force until the node has followed; empty: nothing larger
    more: Mapping[str, Share]  # shares that must be free before, by device UUID


def step_of(pod: SeenPod, node: Node) -> Step | None:
    """The step to the requested size; None: the Pod has it already, or requests no resize.

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
            f"device {uuid} gives nothing more", "it is missing or not healthy",
            "it is tried again; run penstock devices on its node", reason="not-enough-left",
        )  # fmt: skip
    short = [
        f"has {said(max(0, free))} free, {said(asked)} more were asked"
        for asked, free, said in (
            (extra.memory_bytes, left.memory_bytes, _memory),
            (extra.cores_permille, left.cores_permille, _cores),
        )
        if asked > max(0, free)
    ]
    if short:
        raise PenstockError(
            f"device {uuid} {' and '.join(short)}", "the Pod keeps what it has",
            "it is tried again when more is free; ask for less, or end others",
            reason="not-enough-left",
        )  # fmt: skip


def _memory(amount_bytes: int) -> str:
    return human_memory(amount_bytes) if amount_bytes else "0"


def _cores(permille: int) -> str:
    return f"{format_cores(permille)} % of its time"
