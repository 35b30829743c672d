"""Simulated machines of a state directory: one for each specification, shared by its tenants."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.devices import DeviceBackend, open_machine
from penstock.model import PenstockError
from penstock.node.tenants.tenant import collect, live_grants
from penstock.node.tenants.tenant_processes import MACHINE_VARIABLE, environments

if TYPE_CHECKING:
    from penstock.node.tenants.state import State


def simulated_machine(state: State, spec: str, place: str = "") -> DeviceBackend:
    """The simulated machine for `spec` ("h200,2"), recreated if unused; call it without the lock.

    If `place` is set, such as to a node's name, the UUIDs of its devices are unique to that place.

    Raises:
        SpecError, ProfileError: `spec` is invalid, or does not name a profile.
    """
    path = state.machines / _key(spec)
    with state.lock():
        if path.exists() and not _in_use(state, path):
            path.unlink()
        source = open_machine(path, spec, place)
        if state.is_shared():
            path.chmod(0o666)  # like a real GPU's device node, open to all users
        return source


def _in_use(state: State, machine: Path) -> bool:
    try:
        if any(grant.machine == str(machine) for grant in live_grants(collect(state))):
            return True
    except PenstockError:  # the unreadable grant may be for this machine
        return True
    return any(v[MACHINE_VARIABLE] == str(machine) for v in environments(MACHINE_VARIABLE).values())


def _key(spec: str) -> str:
    """A file name for `spec`; for a profile file, it contains a digest of the file's content."""
    profile, _, count = spec.partition(",")
    key = f"{Path(profile).stem}x{count.strip() or 1}"
    if Path(profile).is_file():
        try:
            key += "-" + hashlib.sha256(Path(profile).read_bytes()).hexdigest()[:8]
        except OSError as error:
            raise PenstockError(f"cannot read {profile}", error.strerror or str(error)) from error
    return re.sub(r"[^A-Za-z0-9.-]+", "_", key) or "machine"
