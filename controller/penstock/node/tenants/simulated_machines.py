"""Simulated machines of this state directory: one for each specification, shared by its users."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.devices import DeviceSource, open_machine
from penstock.model import PenstockError
from penstock.node.tenants.tenant import collect, live_grants
from penstock.node.tenants.tenant_processes import MACHINE_VARIABLE, environments

if TYPE_CHECKING:
    from penstock.node.tenants.state import State


def simulated_machine(state: State, spec: str, place: str = "") -> DeviceSource:
    """The machine for `spec` ("h200,2"), fresh when nobody uses it. Call without the state's lock.

    With a `place`, such as the name of a node, no machine of another place has the same UUIDs.

    Raises the simulator's error for a profile that does not exist.
    """
    path = state.machines / _key(spec)
    with state.lock():
        if path.exists() and not _in_use(state, path):
            path.unlink()
        source = open_machine(path, spec, place)
        if state.is_shared():
            path.chmod(0o666)  # a GPU's device node is open to all, and so is what stands for one
        return source


def _in_use(state: State, machine: Path) -> bool:
    try:
        if any(grant.machine == str(machine) for grant in live_grants(collect(state))):
            return True
    except PenstockError:  # a grant that cannot be read may be on it
        return True
    return any(v[MACHINE_VARIABLE] == str(machine) for v in environments(MACHINE_VARIABLE).values())


def _key(spec: str) -> str:
    """A file name for `spec`; a profile file's name carries a digest of what it says."""
    profile, _, count = spec.partition(",")
    key = f"{Path(profile).stem}x{count.strip() or 1}"
    if Path(profile).is_file():
        try:
            key += "-" + hashlib.sha256(Path(profile).read_bytes()).hexdigest()[:8]
        except OSError as error:
            raise PenstockError(f"cannot read {profile}", error.strerror or str(error)) from error
    return re.sub(r"[^A-Za-z0-9.-]+", "_", key) or "machine"
