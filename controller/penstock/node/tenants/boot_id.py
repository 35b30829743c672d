"""Boot identity, and the removal of tenants that an earlier boot left behind."""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.node.tenants.tenant import tenants_of
from penstock.node.tenants.tenant_events import record_event

if TYPE_CHECKING:
    from penstock.node.tenants.state import State

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@cache
def boot_id() -> str:
    """The kernel's boot id, empty if it cannot be read."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def end_former_boot(state: State) -> list[str]:
    """Removes the tenants of an earlier boot; returns their names.

    A state directory usually lies on a file system that a reboot empties. On a disk it survives,
    but then its pids and its CLOCK_MONOTONIC times, which gates wait for, are no longer valid.
    Simulated devices are removed for the same reason.

    Raises:
        PenstockError: the state directory cannot be written.
    """
    mark = state.directory / "boot"
    with state.lock():
        try:
            marked = mark.read_text(encoding="utf-8")
        except FileNotFoundError:
            marked = ""  # new, or created in this boot by a release without the mark
        ended: list[str] = []
        if marked == boot_id():
            return ended
        if marked:
            for tenant in tenants_of(state):
                record_event(tenant.directory, "rebooted", boot=boot_id())
                tenant.remove()
                ended.append(tenant.name)
        try:
            if marked:
                for machine in state.machines.iterdir():
                    shutil.rmtree(machine) if machine.is_dir() else machine.unlink()
            aside = mark.with_name(".boot")
            aside.write_text(boot_id(), encoding="utf-8")
            aside.replace(mark)
        except OSError as error:
            raise PenstockError(
                f"cannot use the state directory {state.directory}",
                f"{os.fspath(error.filename or mark)}: {error.strerror or error}",
                "name another directory with --state-dir or $PENSTOCK_STATE_DIR",
            ) from error
    return ended
