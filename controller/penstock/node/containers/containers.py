"""CDI devices of a node's tenants, which the node agent offers, withdraws and adopts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.devices import DriverLibraries
from penstock.model import PenstockError
from penstock.node.containers import container_folder, places
from penstock.node.containers.cdi import SpecDirectory, qualified_name, spec_of
from penstock.node.containers.shim_release import (
    Release,
    install_release,
)
from penstock.node.tenants.tenant import Tenant, tenants_of
from penstock_shim.pages import PageError, read_quota

if TYPE_CHECKING:
    from penstock.devices import DeviceBackend
    from penstock.node.tenants.state import State

RELEASES = Path("/var/lib/penstock/shim")  # not in /run, which may be mounted noexec
SPECS = Path("/var/run/cdi")


@dataclass(frozen=True)
class Adopted:
    """The result of `Containers.adopt`, by tenant name."""

    kept: tuple[str, ...]
    """Tenants whose spec was already correct."""
    written: tuple[str, ...]
    """Tenants whose spec was missing or different, and was rewritten."""
    removed: tuple[str, ...]
    """Specs that were removed because their tenants are gone."""
    failed: dict[str, PenstockError]
    """Tenants that cannot be offered, and why. They were left unchanged."""


class Containers:
    """The CDI devices of one state directory, whose only writer is the agent.

    Every call may be repeated; the next `adopt` completes a call that was killed half-way.
    """

    def __init__(self, state: State, *, releases: Path = RELEASES, specs: Path = SPECS) -> None:
        """Installs this version's shim in `releases`. Raises `PenstockError` if that fails."""
        self._state = state
        self._releases = releases
        self._specs = SpecDirectory(specs)
        self.release = install_release(releases)

    def offer(self, tenant: Tenant) -> str:
        """Offers the tenant to containers as a CDI device; returns its qualified name.

        The tenant's quota page must name the libraries that `container_libraries` returns.

        Raises:
            PenstockError: the tenant cannot be offered; an earlier offer, if any, is unchanged.
        """
        self._write(tenant)
        return qualified_name(tenant.name)

    def withdraw(self, name: str) -> bool:
        """Withdraws the tenant from new containers; returns whether it was offered.

        Running containers keep the device.
        """
        if not self._is_ours(name):
            return False
        return self._specs.remove(name)

    def adopt(self) -> Adopted:
        """Renews all earlier offers after a start, and removes the specs of ended tenants.

        A tenant keeps the shim release that it started with.
        """
        self._specs.remove_leftovers()
        kept: list[str] = []
        written: list[str] = []
        failed: dict[str, PenstockError] = {}
        living = {tenant.name: tenant for tenant in tenants_of(self._state)}
        for name, tenant in living.items():
            if container_folder.kept_release(tenant) is None:
                continue  # the tenant was never offered
            try:
                (written if self._write(tenant) else kept).append(name)
            except PenstockError as error:
                failed[name] = error
        gone = [n for n in self._specs.devices() if n not in living and self._is_ours(n)]
        removed = [name for name in gone if self._specs.remove(name)]
        return Adopted(tuple(kept), tuple(written), tuple(removed), failed)

    def offered(self) -> list[str]:
        """Names of the tenants in this state directory that are offered to containers."""
        return [name for name in self._specs.devices() if self._is_ours(name)]

    def _write(self, tenant: Tenant) -> bool:
        grant = tenant.grant()
        machine = Path(grant.machine) if grant.machine else None
        self._check_name(tenant)
        _check_libraries(tenant, machine)
        try:
            release = self._release_of(tenant)
            container_folder.prepare(tenant, machine)
        except OSError as error:
            raise PenstockError(
                f"tenant {tenant.name!r} cannot be offered to containers",
                f"{error.filename or tenant.directory}: {error.strerror or error}",
                "check that its directory exists and is writable, then try again",
                reason="unavailable",
            ) from error
        mounts = container_folder.mounts(tenant, release, machine)
        return self._specs.write(tenant.name, spec_of(tenant.name, mounts, release.hook))

    def _release_of(self, tenant: Tenant) -> Release:
        """The release that the tenant started with, which it keeps across upgrades."""
        name = container_folder.kept_release(tenant)
        if name is None:
            container_folder.keep_release(tenant, self.release)
            return self.release
        release = Release(self._releases / name)
        if not release.is_there():
            raise PenstockError(
                f"tenant {tenant.name!r} cannot be offered to containers",
                f"it started with the shim in {release.directory}, which is missing",
                "mount or restore that folder and try again, or revoke the tenant",
                reason="unavailable",
            )
        return release

    def _check_name(self, tenant: Tenant) -> None:
        pages = self._specs.pages_of(tenant.name)
        if pages is not None and not self._is_ours(tenant.name) and Path(pages).exists():
            raise PenstockError(
                f"{qualified_name(tenant.name)} is taken",
                f"it mounts the pages in {Path(pages).parent}, which is in another state directory",
                "choose another name",
            )

    def _is_ours(self, name: str) -> bool:
        pages = self._specs.pages_of(name)
        return pages is not None and Path(pages).parent == self._state.tenants / name


def container_libraries(source: DeviceBackend, driver_root: Path = Path("/")) -> DriverLibraries:
    """The paths of the driver's libraries inside containers, for `create_tenant`.

    The vendor's own CDI device mounts the real libraries under their full names, which include the
    driver's version, at the same path as below `driver_root`, where the driver is installed.

    Raises:
        PenstockError: no driver is installed.
    """
    if source.machine is not None:
        return DriverLibraries(f"{places.DRIVER}/{places.CUDA}", f"{places.DRIVER}/{places.NVML}")
    libraries = source.libraries()
    return DriverLibraries(
        _full_name(libraries.driver, places.CUDA, driver_root),
        _full_name(libraries.management, places.NVML, driver_root),
    )


def companions(tenant: Tenant) -> list[str]:
    """The vendor's CDI devices that a container also needs for libraries and device nodes."""
    grant = tenant.grant()
    if grant.machine is not None:
        return []
    return [f"nvidia.com/gpu={device.uuid}" for device in grant.devices]


def _full_name(library: str, name: str, driver_root: Path) -> str:
    if not library:
        raise PenstockError(
            f"cannot offer a real device to containers: {name} was not found",
            "its path must be known, because the shim is mounted in its place",
            "install the driver, or see penstock doctor",
        )
    path = Path(library).resolve()
    if path.name == name:
        raise PenstockError(
            "cannot offer a real device to containers: "
            f"{library} is not a link to a versioned file",
            f"the shim is mounted as {name}, so the driver's file needs another name",
            "install the driver with its vendor's installer or packages",
        )
    root = driver_root.resolve()
    return f"/{path.relative_to(root)}" if path.is_relative_to(root) else str(path)


def _check_libraries(tenant: Tenant, machine: Path | None) -> None:
    """Raises `PenstockError` if the quota page is for `penstock run`, with paths of the host."""
    if machine is None:
        return
    try:
        named = read_quota(tenant.quota_page).driver_path
    except PageError as error:
        raise PenstockError(
            f"tenant {tenant.name!r} cannot be offered to containers",
            str(error),
            "revoke the tenant, and create it again",
        ) from error
    if named != f"{places.DRIVER}/{places.CUDA}":
        raise PenstockError(
            f"tenant {tenant.name!r} cannot be offered to containers",
            f"its quota page names the driver {named}, which is outside the container",
            "revoke the tenant, and create it again for containers",
        )
