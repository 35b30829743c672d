"""What a node agent does about containers: offers them tenants, withdraws and adopts these."""

from __future__ import annotations

import shutil
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
    releases_in,
    remove_leftovers,
)
from penstock.node.tenants.tenant import Tenant, tenants_of
from penstock_shim.pages import PageError, read_quota

if TYPE_CHECKING:
    from penstock.devices import DeviceSource
    from penstock.node.tenants.state import State

RELEASES = Path("/var/lib/penstock/shim")  # not below /run, which may be noexec
SPECS = Path("/var/run/cdi")


@dataclass(frozen=True)
class Adopted:
    """What `Containers.adopt` found, by tenants' names."""

    kept: tuple[str, ...]
    """Their spec was in order."""
    written: tuple[str, ...]
    """Their spec was missing or another one, and was written again."""
    removed: tuple[str, ...]
    """Specs whose tenants are gone."""
    failed: dict[str, PenstockError]
    """Those that cannot be offered, and why. Nothing was changed about them."""


class Containers:
    """The CDI devices of one state directory. One writer at a time: the agent.

    Every call may be repeated; one that was killed half-way is completed by the next `adopt`.
    """

    def __init__(self, state: State, *, releases: Path = RELEASES, specs: Path = SPECS) -> None:
        """Installs the shim of this version below `releases`. Raises `PenstockError`."""
        self._state = state
        self._releases = releases
        self._specs = SpecDirectory(specs)
        self.release = install_release(releases)

    def offer(self, tenant: Tenant) -> str:
        """Makes the tenant a device that containers can be given; returns its qualified name.

        The tenant's quota page must name the libraries that `container_libraries` gives. Raises
        `PenstockError`; the tenant is not offered then, or as it was before.
        """
        self._write(tenant)
        return qualified_name(tenant.name)

    def withdraw(self, name: str) -> bool:
        """No new container gets the tenant; returns whether one could. Running ones keep it."""
        if not self._is_ours(name):
            return False
        return self._specs.remove(name)

    def adopt(self) -> Adopted:
        """After a start: offers every tenant that was offered before, forgets those that are gone.

        A tenant keeps the release of the shim that it began with.
        """
        self._specs.remove_leftovers()
        kept: list[str] = []
        written: list[str] = []
        failed: dict[str, PenstockError] = {}
        living = {tenant.name: tenant for tenant in tenants_of(self._state)}
        for name, tenant in living.items():
            if container_folder.kept_release(tenant) is None:
                continue  # never offered
            try:
                (written if self._write(tenant) else kept).append(name)
            except PenstockError as error:
                failed[name] = error
        gone = [n for n in self._specs.devices() if n not in living and self._is_ours(n)]
        removed = [name for name in gone if self._specs.remove(name)]
        return Adopted(tuple(kept), tuple(written), tuple(removed), failed)

    def offered(self) -> list[str]:
        """Names of this state directory's tenants that containers can be given."""
        return [name for name in self._specs.devices() if self._is_ours(name)]

    def prune(self) -> list[str]:
        """Removes releases of the shim that no tenant has; returns their names.

        Mounted files live on for the containers that have them.
        """
        used = {container_folder.kept_release(tenant) for tenant in tenants_of(self._state)}
        used.add(self.release.name)
        gone = [found for found in releases_in(self._releases) if found.name not in used]
        remove_leftovers(self._releases)
        for release in gone:
            shutil.rmtree(release.directory, ignore_errors=True)
        return [release.name for release in gone]

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
                "see that its directory is there and can be written, then ask again",
                reason="unavailable",
            ) from error
        mounts = container_folder.mounts(tenant, release, machine)
        return self._specs.write(tenant.name, spec_of(tenant.name, mounts, release.hook))

    def _release_of(self, tenant: Tenant) -> Release:
        """The one that the tenant began with, so that an upgrade changes nothing for it."""
        name = container_folder.kept_release(tenant)
        if name is None:
            container_folder.keep_release(tenant, self.release)
            return self.release
        release = Release(self._releases / name)
        if not release.is_there():
            raise PenstockError(
                f"tenant {tenant.name!r} cannot be offered to containers",
                f"it began with the shim in {release.directory}, which is not there",
                "mount or restore that folder and ask again, or revoke the tenant",
                reason="unavailable",
            )
        return release

    def _check_name(self, tenant: Tenant) -> None:
        pages = self._specs.pages_of(tenant.name)
        if pages is not None and not self._is_ours(tenant.name) and Path(pages).exists():
            raise PenstockError(
                f"{qualified_name(tenant.name)} is taken",
                f"it has the pages in {Path(pages).parent}, of another state directory",
                "choose another name",
            )

    def _is_ours(self, name: str) -> bool:
        pages = self._specs.pages_of(name)
        return pages is not None and Path(pages).parent == self._state.tenants / name


def container_libraries(source: DeviceSource, driver_root: Path = Path("/")) -> DriverLibraries:
    """Where the driver's libraries lie inside containers: for `create_tenant`.

    Real ones are mounted there by the vendor's own CDI device, under their full names (with the
    driver's version) and as they lie below `driver_root`, where the driver was installed. Raises
    `PenstockError` when there is no driver.
    """
    if source.machine is not None:
        return DriverLibraries(f"{places.DRIVER}/{places.CUDA}", f"{places.DRIVER}/{places.NVML}")
    libraries = source.libraries()
    return DriverLibraries(
        _full_name(libraries.cuda, places.CUDA, driver_root),
        _full_name(libraries.nvml, places.NVML, driver_root),
    )


def companions(tenant: Tenant) -> list[str]:
    """The vendor's CDI devices that a container needs beside ours: libraries and device nodes."""
    grant = tenant.grant()
    if grant.machine is not None:
        return []
    return [f"nvidia.com/gpu={device.uuid}" for device in grant.devices]


def _full_name(library: str, name: str, driver_root: Path) -> str:
    if not library:
        raise PenstockError(
            f"containers cannot be given a real device: {name} was not found",
            "its path must be known, as the shim stands in its place there",
            "install the driver, or see penstock doctor",
        )
    path = Path(library).resolve()
    if path.name == name:
        raise PenstockError(
            f"containers cannot be given a real device: {library} is no link to a versioned file",
            f"the shim is mounted as {name}, so the driver needs a name of its own",
            "install the driver as its vendor does",
        )
    root = driver_root.resolve()
    return f"/{path.relative_to(root)}" if path.is_relative_to(root) else str(path)


def _check_libraries(tenant: Tenant, machine: Path | None) -> None:
    """A page made for `penstock run` names paths that no container has."""
    if machine is None:
        return
    try:
        named = read_quota(tenant.quota_page).driver_path
    except PageError as error:
        raise PenstockError(
            f"tenant {tenant.name!r} cannot be offered to containers", str(error)
        ) from error
    if named != f"{places.DRIVER}/{places.CUDA}":
        raise PenstockError(
            f"tenant {tenant.name!r} cannot be offered to containers",
            f"its quota page names the driver {named}, which lies outside",
            "start it for containers",
        )
