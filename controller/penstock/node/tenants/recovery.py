"""Recovery of a tenant whose grant.yaml is unreadable, from its quota and usage pages."""

from __future__ import annotations

import pwd
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from penstock.node.tenants.grant import DeviceGrant, Grant
from penstock_shim.pages import PageError, read_quota

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.devices import Device
    from penstock.node.tenants.tenant import Tenant


def grant_of_pages(tenant: Tenant, machine: str | None, devices: Iterable[Device]) -> Grant:
    """A substitute grant with the limits in force, whose user is the owner of the usage page.

    The tenant then stays until it is revoked, because its lifetime is unknown. `devices` are the
    node's devices; the tenant's devices are matched with them by UUID.

    Raises:
        PageError: the pages are unreadable, too.
    """
    limits = read_quota(tenant.quota_page).limits
    try:
        found = tenant.usage_page.lstat()
    except OSError as error:
        raise PageError(tenant.usage_page, f"cannot be read ({error.strerror})") from None
    known = {device.uuid.lower(): device for device in devices}
    shares = []
    for limit in limits.devices:
        device = known.get(limit.uuid.lower())
        shares.append(
            DeviceGrant(
                uuid=device.uuid if device else limit.uuid,
                index=device.index if device else 0,
                name=device.name if device else "not known",
                memory_bytes=limit.memory_bytes,
                cores_permille=limit.cores_permille,
                device_memory_bytes=device.memory_bytes if device else limit.memory_bytes,
                context_bytes=limit.context_reserve_bytes,
            )
        )
    return Grant(
        tenant=tenant.name,
        mode=limits.mode,
        devices=tuple(shares),
        command=(),
        user=_name_of(found.st_uid),
        uid=found.st_uid,
        created=datetime.fromtimestamp(found.st_ctime, timezone.utc).isoformat(),
        machine=machine,
        allow_unknown=limits.allow_unknown,
        record=limits.record,
        lifetime="until-revoked",
        suspended=limits.suspended,
        memory="released" if limits.released else "device",
    )


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
