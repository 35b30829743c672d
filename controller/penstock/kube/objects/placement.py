"""Where a Pod's vGPUs are: written into the Pod with its Binding, read on its node.

An annotation with JSON: {"container": {"device UUID": [memory in bytes, cores in permille]}}. It
and the Pod's node are written by the API server in one update, so that there is never one without
the other, and nobody but the scheduler may write it (the webhook sees to that).

A share that shrinks is in force on the node until that has followed. Meanwhile a second annotation
of the same form says what each container may still have: it is written in one update with the
smaller placement, and taken away by the node, over the version of the Pod that it has followed.
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
    """The annotation."""
    plain = {
        container: {uuid: [one.memory_bytes, one.cores_permille] for uuid, one in shares.items()}
        for container, shares in placement.items()
    }
    return json.dumps(plain, separators=(",", ":"), sort_keys=True)


def read_placement(text: str) -> Placement:
    """What the annotation says. Raises `PenstockError` for anything that no scheduler wrote."""
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
    """Of each share the larger amounts: what containers may have of which either is in force."""
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
        raise ValueError(f"{text!r} is no name")
    return text


def _share(plain: list[object]) -> Share:
    memory_bytes, cores_permille = plain
    return Share(
        _amount(memory_bytes, MAX_MEMORY_BYTES), _amount(cores_permille, FULL_DEVICE_PERMILLE)
    )


def _amount(figure: object, most: int) -> int:
    if not isinstance(figure, int) or isinstance(figure, bool) or not 0 < figure <= most:
        raise ValueError(f"{figure!r} is no amount")
    return figure


def _nonsense(why: str) -> PenstockError:
    return PenstockError(
        "the Pod's placement cannot be read", why,
        "only the scheduler of the chart writes it: delete the Pod, so that it is placed anew",
    )  # fmt: skip
