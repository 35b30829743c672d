"""What lasts for one boot of the machine, and is of no use after the next one."""

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
    """This boot's identity as the kernel gives it; empty: it tells none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def end_former_boot(state: State) -> list[str]:
    """Ends the tenants that are left of a former boot; returns their names.

    Usually a state directory lies where nothing outlives a boot. On a disk, however, all that it
    holds would mean something else now: its pids and the times (CLOCK_MONOTONIC) that gates wait
    for. Simulated devices go for the same reason.

    Raises `PenstockError`: the directory cannot be written.
    """
    mark = state.directory / "boot"
    with state.lock():
        try:
            marked = mark.read_text(encoding="utf-8")
        except FileNotFoundError:
            marked = ""  # new, or of a release that made no mark: the latter is of this boot
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
                "name another one with --state-dir or $PENSTOCK_STATE_DIR",
            ) from error
    return ended
