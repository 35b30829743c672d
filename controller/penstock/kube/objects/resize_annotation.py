"""Resize annotation: the requested sizes of a running Pod's vGPUs, JSON by container.

    penstock.io/resize: '{"main": {"memory": "30Gi", "cores-permille": 500}}'

Quantities apply to each of the container's devices, as under `limits`. An omitted quantity stays as
it is. TFLOPS are not accepted: the Pod has its device, so permille of cores say the same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.kube.objects.names import HELD, PLACED, RESIZE, RESOURCE_CORES, RESOURCE_MEMORY
from penstock.kube.objects.placement import Share, at_most, read_placement
from penstock.kube.objects.resource_request import whole
from penstock.model import PenstockError, format_cores, human_memory, listing, nearest
from penstock.scheduling.placement.device_state import NOTHING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.kube.objects.placement import Placement

MOST_BYTES = 16 << 10
EXAMPLE = '{"main": {"memory": "30Gi", "cores-permille": 500}}'
CLAIMS_DO_NOT_CHANGE = (
    f"annotation {RESIZE} changes nothing here: the Pod has its vGPU by a claim, and a claim does "
    "not change while it is allocated; create a new claim with the quantities that you need, and a "
    "new Pod with it"
)
_KEYS = {name.partition("/")[2]: name for name in (RESOURCE_MEMORY, RESOURCE_CORES)}


@dataclass(frozen=True)
class Wish:
    """The requested share of each device of one container; None: unchanged."""

    memory_bytes: int | None = None
    cores_permille: int | None = None


def read_resize(text: str) -> dict[str, Wish]:
    """Reads the annotation, by container; raises `PenstockError` for a malformed one."""
    if len(text) > MOST_BYTES:
        raise _nonsense(f"it has {len(text)} characters")
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _nonsense(str(error)) from error
    if not isinstance(plain, dict) or not plain:
        raise _nonsense("it is not a JSON object with container names as keys")
    return {container: _wish(container, amounts) for container, amounts in plain.items()}


def resized(placement: Placement, wishes: Mapping[str, Wish]) -> Placement:
    """The requested placement, on the same devices.

    Raises:
        PenstockError: a container that has no vGPU is named.
    """
    after = dict(placement)
    for container, wish in wishes.items():
        if not placement.get(container):
            raise PenstockError(
                f"annotation {RESIZE} names container {container[:60]!r}",
                f"vGPUs have {listing(sorted(placement)) or 'no containers of this Pod'}",
                "name one of those",
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
    """Describes in words the shares a Pod has by extended resources, still holds, and requests."""
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
            lines.append(f"still held until its node has followed: {in_words(placement, held)}")
        if annotations.get(RESIZE):
            wanted = resized(placement, read_resize(annotations[RESIZE]))
            if wanted != placement:
                lines.append(f"asked for and not reserved: {in_words(placement, wanted)}")
    except PenstockError as error:
        return [str(error)]
    return lines


def _share(share: Share) -> str:
    if share == NOTHING:
        return "nothing"
    return f"{human_memory(share.memory_bytes)} and {format_cores(share.cores_permille)} %"


def _wish(container: str, amounts: object) -> Wish:
    if not isinstance(amounts, dict) or not amounts:
        raise _nonsense(f"of container {container[:60]!r} it says no amounts")
    figures = {}
    for key, value in amounts.items():
        if key not in _KEYS:
            near = nearest(str(key), _KEYS)
            raise _nonsense(
                f"it has {str(key)[:60]!r}"
                + (f"; did you mean {near}?" if near else f"; there are {listing(sorted(_KEYS))}")
            )
        figures[key] = whole(container, _KEYS[key], value)
    return Wish(figures.get("memory"), figures.get("cores-permille"))


def _nonsense(why: str) -> PenstockError:
    return PenstockError(f"annotation {RESIZE} cannot be read", why, f"write it like {EXAMPLE}")
