"""Facts about the machine of a benchmark report."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from penstock import __version__
from penstock_shim import simulator


@dataclass(frozen=True)
class MachineFacts:
    """Machine, versions and date of a report."""

    processor: str
    cores: int  # available to this process
    kernel: str
    device: str  # always simulated here
    version: str
    date: str  # UTC


def machine_facts(simulate: str) -> MachineFacts:
    """The facts of this machine and of the simulated profile `simulate`."""
    return MachineFacts(
        processor=processor_name(),
        cores=len(os.sched_getaffinity(0)),
        kernel=f"{platform.system()} {platform.release()}",
        device=f"simulated {simulator.parse_spec(simulate).profile.name}",
        version=__version__,
        date=datetime.now(timezone.utc).date().isoformat(),
    )


def processor_name() -> str:
    """The processor's model, or its architecture where that is not known."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()
