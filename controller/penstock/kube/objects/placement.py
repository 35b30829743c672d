"""Placement annotation: the devices of a Pod's vGPUs, written with its Binding, read on its node.

The annotation holds JSON: {"container": {"device UUID": [memory in bytes, cores in permille]}}. The
API server writes the annotation and the name of the Pod's node in one update, so neither ever
exists without the other. The webhook ensures that only the scheduler may write the annotation.

When a share shrinks, the old share stays in force until the node has applied the change. Meanwhile
a second annotation of the same form records what each container may still hold. It is written in
the same update as the smaller placement. The node removes it, on condition that the Pod still has
the version whose placement the node has applied.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.model.quantity import FULL_DEVICE_PERMILLE, MAX_MEMORY_BYTES
from penstock.model.share import NOTHING, Share
from penstock.scheduling.placement.device_state import Placement

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Placement", "at_most", "read_placement", "write_placement"]
MOST_BYTES = 64 << 10  # annotations of an object may have 256 KiB in all


def write_placement(placement: Mapping[str, Mapping[str, Share]]) -> str:
    """Writes the annotation."""
    plain = {
        container: {uuid: [one.memory_bytes, one.cores_permille] for uuid, one in shares.items()}
        for container, shares in placement.items()
    }
    return json.dumps(plain, separators=(",", ":"), sort_keys=True)


def read_placement(text: str) -> Placement:
    """Reads the annotation. Raises `PenstockError` if it is malformed."""
    if len(text) > MOST_BYTES:
        raise _nonsense(f"it has {len(text)} characters, more than {MOST_BYTES}")
    try:
        plain = json.loads(text)
        return {
            _word(container): {_word(uuid): _share(one) for uuid, one in shares.items()}
            for container, shares in plain.items()
        }
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _nonsense(str(error)) from error


def at_most(one: Placement, other: Placement) -> Placement:
    """The larger quantity of each share: an upper bound while either placement may be in force."""
    return {
        container: {
            uuid: shares.get(uuid, NOTHING).at_least(others.get(uuid, NOTHING))
            for uuid in {**shares, **others}
        }
        for container in {**one, **other}
        for shares, others in [(one.get(container, {}), other.get(container, {}))]
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
        "delete the Pod, so that it is placed again; only the chart's scheduler writes a placement",
    )  # fmt: skip
