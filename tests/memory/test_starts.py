"""Processes start, allocate and end in numbers, a third of them killed: nothing of them is left.

`make soak` starts ten thousand (PENSTOCK_SOAK_STARTS).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from typing import TYPE_CHECKING

from penstock_shim import simulator
from penstock_shim._native import ffi, lib

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
STARTS = int(os.environ.get("PENSTOCK_SOAK_STARTS", "1000"))
AT_ONCE = 4


def namespaces_and_high(usage: Path) -> tuple[int, int]:
    """Entries of the namespace table, and how many slots were ever used."""
    page = ffi.from_buffer("penstock_usage_page *", usage.read_bytes())
    entries = sum(1 for i in range(lib.PENSTOCK_MAX_PID_NAMESPACES) if page.pid_namespaces[i])
    return entries, page.slots_high


def test_a_thousand_starts_leak_no_slot_no_page_no_charge_and_no_file(program, tenants):
    tenant = tenants(memory_bytes=(AT_ONCE + 8) * MIB)  # what the dead keep would soon be missed
    command, environment = program("start"), tenant.environment()
    files = sorted(path.name for path in tenant.folder.iterdir())
    machine_files = sorted(tenant.machine.parent.iterdir())
    with simulator.Machine(tenant.machine) as machine:
        used_before = machine.usage().memory_used_bytes
        began = time.monotonic()
        ends: Counter[int] = Counter()
        for first in range(0, STARTS, AT_ONCE):
            running = [
                subprocess.Popen([command, *(["kill"] if n % 3 == 0 else [])], env=environment)
                for n in range(first, min(first + AT_ONCE, STARTS))
            ]
            ends.update(process.wait() for process in running)
        took_s = time.monotonic() - began
        killed = (STARTS + 2) // 3
        assert ends == {0: STARTS - killed, -signal.SIGKILL: killed}
        entries, high = namespaces_and_high(tenant.folder / "usage")
        left = tenant.charged()
        tenant.reap()
        assert tenant.charged() == 0
        assert entries == 1
        assert high <= 4 * AT_ONCE
        assert sorted(path.name for path in tenant.folder.iterdir() if path.name != "log") == files
        assert sorted(tenant.machine.parent.iterdir()) == machine_files
        assert machine.usage().memory_used_bytes == used_before
    if "PENSTOCK_SOAK_STARTS" in os.environ:
        print(f"{STARTS} starts in {took_s:.0f} s; slots ever used: {high}; left: {left} B")
