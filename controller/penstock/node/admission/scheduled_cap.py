"""The share that an external scheduler accounts for a tenant, which its quota may not exceed.

The grant stores this cap in one label for each device, so that it survives any restart.
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
    """Raises `PenstockError` if `share` exceeds the share that the scheduler accounts for."""
    text = labels.get(f"{_PREFIX}{share.uuid}")
    if text is None:
        return
    try:
        memory_bytes, cores_permille = map(int, text.split(":"))
    except ValueError:
        raise PenstockError(
            f"tenant {tenant!r} cannot be changed", f"its label {_PREFIX}{share.uuid} is {text!r}",
            "correct the label in the tenant's grant.yaml", reason="not-now",
        ) from None  # fmt: skip
    if share.memory_bytes > memory_bytes or share.cores_permille > cores_permille:
        raise PenstockError(
            f"tenant {tenant!r} cannot have that much of device {share.index}",
            f"its cluster's scheduler has accounted for {human_memory(memory_bytes)} and "
            f"{format_cores(cores_permille)} % only, and may give the rest to others",
            "set no more than that, or request more from the cluster with the Pod's annotation "
            "penstock.io/resize; a claim's quantities cannot change, so create a new claim",
            reason="not-allowed",
        )
