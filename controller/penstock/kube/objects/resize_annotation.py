"""Resize annotation: the new sizes requested for a running Pod's vGPUs, as JSON by container.

    penstock.io/resize: '{"main": {"memory": "30Gi", "cores-permille": 500}}'

Quantities apply to each of the container's devices, as under `limits`. An omitted quantity does not
change. TFLOPS are not accepted: the Pod's device is known, so permille of cores can express any
amount of compute.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.kube.objects.names import HELD, PLACED, RESIZE, RESOURCE_CORES, RESOURCE_MEMORY
from penstock.kube.objects.placement import at_most, read_placement
from penstock.kube.objects.resource_request import whole
from penstock.model import PenstockError, format_cores, human_memory, listing, nearest
from penstock.model.share import NOTHING, Share

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.kube.objects.placement import Placement

MOST_BYTES = 16 << 10
EXAMPLE = '{"main": {"memory": "30Gi", "cores-permille": 500}}'
CLAIMS_DO_NOT_CHANGE = (
    f"annotation {RESIZE} has no effect on this Pod: its vGPU comes from a claim, and an allocated "
    "claim cannot change; create a new claim with the quantities that you need, and a new Pod that "
    "uses it"
)
_KEYS = {name.partition("/")[2]: name for name in (RESOURCE_MEMORY, RESOURCE_CORES)}


@dataclass(frozen=True)
class Wish:
    """The requested share of each device of one container. None leaves a quantity unchanged."""

    memory_bytes: int | None = None
    cores_permille: int | None = None


def read_resize(text: str) -> dict[str, Wish]:
    """Reads the annotation, by container. Raises `PenstockError` if it is malformed."""
    if len(text) > MOST_BYTES:
        raise _nonsense(f"it has {len(text)} characters, more than {MOST_BYTES}")
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _nonsense(str(error)) from error
    if not isinstance(plain, dict) or not plain:
        raise _nonsense("it is not a JSON object with container names as keys")
    return {container: _wish(container, amounts) for container, amounts in plain.items()}


def resized(placement: Placement, wishes: Mapping[str, Wish]) -> Placement:
    """The placement with the requested shares, on the same devices.

    Raises:
        PenstockError: the wishes name a container that has no vGPU.
    """
    after = dict(placement)
    for container, wish in wishes.items():
        if not placement.get(container):
            raise PenstockError(
                f"annotation {RESIZE} names container {container[:60]!r}",
                f"the Pod has vGPUs in {listing(sorted(placement)) or 'none of its containers'}",
                "name a container that has a vGPU",
            )
        after[container] = {
            uuid: Share(
                share.memory_bytes if wish.memory_bytes is None else wish.memory_bytes,
                share.cores_permille if wish.cores_permille is None else wish.cores_permille,
            )
            for uuid, share in placement[container].items()
        }
    return after


def in_words(before: Placement, after: Placement) -> str:
    """Describes the change in words: "main: 30Gi and 50 % of GPU-…, before 20Gi and 30 %"."""
    return "; ".join(
        f"{container}: {_share(share)} of {uuid}, before {_share(was)}"
        for container, shares in after.items()
        for uuid, share in shares.items()
        for was in [before.get(container, {}).get(uuid, NOTHING)]
        if share != was
    )


def told(annotations: Mapping[str, str]) -> list[str]:
    """Describes the shares by extended resources that a Pod has, still holds, and requests."""
    if not annotations.get(PLACED):
        return []
    try:
        placement = read_placement(annotations[PLACED])
        lines = [
            f"{container} has {_share(share)} of {uuid}"
            for container, shares in placement.items()
            for uuid, share in shares.items()
        ]
        if annotations.get(HELD):
            held = at_most(placement, read_placement(annotations[HELD]))
            lines.append(f"still held until its node has shrunk it: {in_words(placement, held)}")
        if annotations.get(RESIZE):
            wanted = resized(placement, read_resize(annotations[RESIZE]))
            if wanted != placement:
                lines.append(f"requested but not reserved: {in_words(placement, wanted)}")
    except PenstockError as error:
        return [str(error)]
    return lines


def _share(share: Share) -> str:
    if share == NOTHING:
        return "nothing"
    return f"{human_memory(share.memory_bytes)} and {format_cores(share.cores_permille)} %"


def _wish(container: str, amounts: object) -> Wish:
    if not isinstance(amounts, dict) or not amounts:
        raise _nonsense(f"it gives no quantities for container {container[:60]!r}")
    figures = {}
    for key, value in amounts.items():
        if key not in _KEYS:
            near = nearest(str(key), _KEYS)
            raise _nonsense(
                f"it has the unknown key {str(key)[:60]!r}"
                + (f"; did you mean {near}?" if near else f"; use {listing(sorted(_KEYS))}")
            )
        figures[key] = whole(container, _KEYS[key], value)
    return Wish(figures.get("memory"), figures.get("cores-permille"))


def _nonsense(why: str) -> PenstockError:
    return PenstockError(f"annotation {RESIZE} cannot be read", why, f"write it like {EXAMPLE}")
