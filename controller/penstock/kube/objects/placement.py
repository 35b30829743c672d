"""Placement annotation: the devices of a Pod's vGPUs, written with its Binding, read on its node.

The annotation holds JSON: {"container": {"device UUID": [memory in bytes, cores in permille]}}. The
API server writes it and the Pod's node in one update, so that there is never one without the other.
The webhook ensures that only the scheduler may write it.

A share that shrinks stays in force until the node has followed. Meanwhile a second annotation of
the same form holds what each container may still have. It is written in one update with the smaller
placement, and the node removes it, over the version of the Pod that the node has followed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.model.quantity import FULL_DEVICE_PERMILLE, MAX_MEMORY_BYTES
from penstock.scheduling.placement.device_state import NOTHING, Placement, Share

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Placement", "Share", "at_most", "read_placement", "write_placement"]
MOST_BYTES = 64 << 10  # annotations of an object may have 256 KiB in all


def write_placement(placement: Mapping[str, Mapping[str, Share]]) -> str:
    """Writes the annotation."""
    plain = {
        container: {uuid: [one.memory_bytes, one.cores_permille] for uuid, one in shares.items()}
        for container, shares in placement.items()
    }
    return json.dumps(plain, separators=(",", ":"), sort_keys=True)


def read_placement(text: str) -> Placement:
    """Reads the annotation; raises `PenstockError` if it is malformed."""
    if len(text) > MOST_BYTES:
        raise _nonsense(f"it has {len(text)} characters")
    try:
        plain = json.loads(text)
        return {
            _word(container): {_word(uuid): _share(one) for uuid, one in shares.items()}
            for container, shares in plain.items()
        }
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _nonsense(str(error)) from error


def at_most(one: Placement, other: Placement) -> Placement:
    """The larger quantities of each share: an upper bound when either placement is in force."""
    return {
        container: {
            uuid: Share(
                max(a.memory_bytes, b.memory_bytes), max(a.cores_permille, b.cores_permille)
            )
            for uuid in {**one.get(container, {}), **other.get(container, {})}
            for a in [one.get(container, {}).get(uuid, NOTHING)]
            for b in [other.get(container, {}).get(uuid, NOTHING)]
        }
        for container in {**one, **other}
    }


def _word(text: object) -> str:
    if not isinstance(text, str) or not 0 < len(text) <= 253:
        raise ValueError(f"{text!r} is not a name")
    return text


def _share(plain: list[object]) -> Share:
    memory_bytes, cores_permille = plain
    return Share(
        _amount(memory_bytes, MAX_MEMORY_BYTES), _amount(cores_permille, FULL_DEVICE_PERMILLE)
    )


def _amount(figure: object, most: int) -> int:
    if not isinstance(figure, int) or isinstance(figure, bool) or not 0 < figure <= most:
        raise ValueError(f"{figure!r} is not an integer from 1 to {most}")
    return figure


def _nonsense(why: str) -> PenstockError:
    return PenstockError(
        "the Pod's placement cannot be read", why,
        "only the chart's scheduler writes it: delete the Pod, so that it is placed again",
    )  # fmt: skip
