"""Environment variables that make a program run as a tenant: preload, devices and directory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.node.tenants.tenant_processes import TENANT_VARIABLE
from penstock_shim import paths

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.devices import DeviceBackend
    from penstock.node.tenants.grant import Grant
    from penstock.node.tenants.state import State
    from penstock.node.tenants.tenant import Tenant

_PRELOAD = "LD_PRELOAD"


def tenant_variables(
    state: State, tenant: Tenant, grant: Grant, source: DeviceBackend
) -> dict[str, str]:
    """Variables for a program of `tenant`. Raises `PenstockError` if a path is unsuitable."""
    libraries = [_preloadable(state, paths.so_path()), _preloadable(state, paths.nvml_so_path())]
    return {
        **source.environment(tenant.name),
        _PRELOAD: ":".join(libraries),
        "CUDA_VISIBLE_DEVICES": ",".join(device.uuid for device in grant.devices),
        TENANT_VARIABLE: str(tenant.directory),
    }


def program_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The current environment with `variables` added.

    The user's own preloads come after the shim, which must be first in symbol lookup.
    """
    libraries = variables[_PRELOAD].split(":")
    own = os.environ.get(_PRELOAD, "").replace(":", " ").split()
    preload = ":".join([*libraries, *(path for path in own if path not in libraries)])
    return {**os.environ, **variables, _PRELOAD: preload}


def _preloadable(state: State, library: Path) -> str:
    """A path to `library` without blanks and colons, which LD_PRELOAD cannot represent."""
    if not any(character in str(library) for character in " :\t"):
        return str(library)
    link = state.directory / library.name
    if any(character in str(link) for character in " :\t"):
        raise PenstockError(
            f"cannot preload {library}",
            "LD_PRELOAD cannot hold a path with a blank or a colon",
            "name a --state-dir whose path has neither",
        )
    aside = link.with_name(f".{link.name}.{os.getpid()}")
    aside.symlink_to(library)
    aside.replace(link)
    return str(link)
