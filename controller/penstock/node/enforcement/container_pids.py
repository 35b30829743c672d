"""Container view of a process: its pid inside the container, and the container's id."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.devices.proc_files import read_proc_text
from penstock.node.enforcement.cgroup import innermost_containers

_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Inside:
    """The container view, with 0 and "" if the process is in no container or has ended."""

    pid: int = 0  # in the process's own pid namespace
    container_id: str = ""  # 64 hexadecimal digits, as the container runtime assigned it


def look_inside(pid: int) -> Inside:
    """The container view of the process that has the pid `pid` now."""
    try:
        status = read_proc_text(pid, "status")
    except OSError:
        return Inside()
    seen = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    cgroups = sorted(innermost_containers(pid))
    found = _ID.search(cgroups[0].rpartition("/")[2]) if cgroups else None
    is_apart = bool(seen) and int(seen[-1]) != pid
    return Inside(int(seen[-1]) if is_apart else 0, found[0] if found else "")
