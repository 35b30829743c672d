"""The cap that an external scheduler has accounted for a tenant: its quota may not exceed it.

The cap is kept in labels of the grant, one for each device, so that it survives any restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model import PenstockError, format_cores, human_memory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.node.tenants.grant import DeviceGrant

_PREFIX = "accounted/"


def accounted_label(uuid: str, memory_bytes: int, cores_permille: int) -> tuple[str, str]:
    """The label that records the accounted share of the device `uuid`."""
    return f"{_PREFIX}{uuid}", f"{memory_bytes}:{cores_permille}"


def check_accounted(tenant: str, labels: Mapping[str, str], share: DeviceGrant) -> None:
    """Raises `PenstockError` if `share` exceeds the accounted share."""
    text = labels.get(f"{_PREFIX}{share.uuid}")
    if text is None:
        return
    try:
        memory_bytes, cores_permille = map(int, text.split(":"))
    except ValueError:
        raise PenstockError(
            f"tenant {tenant!r} cannot be changed", f"its label {_PREFIX}{share.uuid} is {text!r}",
            "correct it in its grant.yaml", reason="not-now",
        ) from None  # fmt: skip
    if share.memory_bytes > memory_bytes or share.cores_permille > cores_permille:
        raise PenstockError(
            f"tenant {tenant!r} cannot have that much of device {share.index}",
            f"its cluster's scheduler accounted {human_memory(memory_bytes)} and "
            f"{format_cores(cores_permille)} % for it, and may give the rest to others",
            "give it no more than that, or ask the cluster for more: by the Pod's annotation "
            "penstock.io/resize; a claim's quantities do not change, so make a new one",
            reason="not-allowed",
        )
