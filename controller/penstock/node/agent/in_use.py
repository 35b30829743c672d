"""Resize check: a memory quota may not shrink below the memory in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model import PenstockError, human_memory
from penstock_shim.pages import PageError, read_usage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.node.agent.managed_tenant import ManagedTenant
    from penstock.node.enforcement.enforcer import DeviceFigures
    from penstock.node.tenants.grant import Grant


def check_in_use(managed: ManagedTenant, after: Grant, figures: Iterable[DeviceFigures]) -> None:
    """Raises `PenstockError` where a memory share would become smaller than the memory in use.

    Enforcement would end the program for the excess.

    Args:
        managed: The tenant whose grant changes.
        after: The new grant.
        figures: The devices' last figures of the tenant; its own page may show less.
    """
    held_bytes = {one.device_uuid: one.memory_bytes or 0 for one in figures}
    try:
        charged = [one.total_bytes for one in read_usage(managed.tenant.usage_page).devices]
    except PageError:  # enforcement handles that
        charged = []
    for at, (before, share) in enumerate(zip(managed.grant.devices, after.devices, strict=True)):
        charged_bytes = charged[at] if at < len(charged) else 0  # pages have room for more devices
        used_bytes = max(charged_bytes, held_bytes.get(share.uuid, 0))
        if used_bytes > share.memory_bytes < before.memory_bytes:
            raise PenstockError(
                f"tenant {after.tenant!r} keeps {human_memory(before.memory_bytes)} of device "
                f"{share.index}",
                f"{human_memory(used_bytes)} of it are in use, more than the new "
                f"{human_memory(share.memory_bytes)}",
                "have its program free some first, or shrink it by force: what is in use beyond "
                "the quota after its grace ends the program",
                reason="not-now",
            )
