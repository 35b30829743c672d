"""The tenant's folder that is mounted into its containers, and the folder's permissions.

`<tenant>/container/` is mounted read-only at `places.TENANT`. Over its empty files the real files
are mounted: the quota page read-only, the usage page writable. The folder also contains the agent's
handshake socket. Containers may run as any user, so the files that they must write are writable for
all. Other users of the node cannot reach these files, because the tenant's directory is closed to
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.node.containers import places
from penstock.node.tenants.tenant import ENTERED

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.node.containers.shim_release import Release
    from penstock.node.tenants.tenant import Tenant

FOLDER = "container"
_RELEASE = "shim-release"  # in the tenant's directory; names the release that the tenant keeps
_TAG_BYTES = 63  # length of the tags that the simulated device stores


def kept_release(tenant: Tenant) -> str | None:
    """The name of the shim release that the tenant started with, None if it has none yet."""
    try:
        return (tenant.directory / _RELEASE).read_text(encoding="ascii").strip() or None
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def keep_release(tenant: Tenant, release: Release) -> None:
    """Records the tenant's shim release atomically."""
    aside = tenant.directory / f".{_RELEASE}"
    aside.write_text(release.name + "\n", encoding="ascii")
    aside.replace(tenant.directory / _RELEASE)


def prepare(tenant: Tenant, machine: Path | None) -> None:
    """Creates the folder, or completes one that is half finished.

    `machine`: the simulated machine's file, None for a real device.

    Raises:
        OSError: the folder cannot be written.
        PenstockError: the machine's file belongs to another user.
    """
    tenant.directory.chmod(0o700)  # before any file in the directory becomes writable for all
    folder = tenant.directory / FOLDER
    _folder(folder)
    for name in ("quota", "usage"):
        _place(folder / name)
    tenant.usage_page.chmod(0o666)
    if machine is None:
        return
    _folder(folder / "driver")
    for name in (places.CUDA, places.NVML, "machine"):
        _place(folder / "driver" / name)
    tag = folder / "driver" / "tag"
    if not tag.exists():
        aside = folder / ".tag"
        aside.write_text(tenant.name[:_TAG_BYTES], encoding="ascii")
        aside.chmod(0o444)
        aside.replace(tag)
    _open_machine(machine)


def mounts(tenant: Tenant, release: Release, machine: Path | None) -> list[tuple[str, str, bool]]:
    """Host path, container path, and whether it is writable, for each mount; outer mounts first."""
    listing = [
        (str(release.shim), places.SHIM, False),
        (str(tenant.directory / FOLDER), places.TENANT, False),
        (str(tenant.quota_page), f"{places.TENANT}/quota", False),
        (str(tenant.usage_page), f"{places.TENANT}/usage", True),
    ]
    if machine is not None:
        listing += [
            (str(release.simulated_driver / name), f"{places.DRIVER}/{name}", False)
            for name in places.SHIMS
        ]
        listing.append((str(machine), f"{places.DRIVER}/machine", True))
    listing += [
        (str(release.shim / shim), f"{folder}/{name}", False)
        for folder in places.STANDING_IN
        for name, shim in places.SHIMS.items()
    ]
    return listing


def _folder(path: Path) -> None:
    path.mkdir(exist_ok=True)
    path.chmod(ENTERED)


def _place(path: Path) -> None:
    """Creates an empty file that another file is mounted over."""
    path.touch(exist_ok=True)
    path.chmod(0o444)


def _open_machine(machine: Path) -> None:
    """Makes the machine's file writable for all users, as a GPU's device node is."""
    if machine.stat().st_mode & 0o666 == 0o666:
        return
    try:
        machine.chmod(0o666)
    except PermissionError as error:
        raise PenstockError(
            f"cannot mount the simulated machine {machine} in containers",
            "it belongs to another user",
            f"make it writable for all (chmod 666 {machine}), or use your own simulated machine",
        ) from error
