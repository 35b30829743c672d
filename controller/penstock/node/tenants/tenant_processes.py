"""The processes of a tenant, found through /proc only, even after Penstock was killed."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from penstock.devices.proc_files import read_proc, read_proc_of
from penstock.node.tenants.mount_lookup import mounted_pages, page_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

TENANT_VARIABLE = "PENSTOCK_TENANT_DIR"
MACHINE_VARIABLE = "PENSTOCK_SIM_MACHINE"


def environments(*names: str) -> dict[int, dict[str, str]]:
    """The variables `names` of every process that was started with one of them, by pid.

    Zombies are left out, and so are other users' processes if their environment is unreadable. The
    environment is the one that the process was started with; a forked child has its parent's.
    """
    wanted = [os.fsencode(name) + b"=" for name in names]
    found: dict[int, dict[str, str]] = {}
    unclear = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208
    own = os.getpid()
    # A process in the middle of execve has an empty environment for a moment, so it is read again.
    for attempt in range(3):
        if attempt:
            time.sleep(0.002)
        waiting = []
        for pid, raw in read_proc_of(unclear, "environ").items():
            if pid == own:
                continue
            if not raw and _is_running_program(pid):
                waiting.append(pid)
            variables = _matching(raw, wanted)
            if variables:
                found[pid] = variables
        unclear = waiting
        if not unclear:
            break
    return found


def started_with(pid: int, name: str) -> str | None:
    """The variable `name` that `pid` was started with, None if it is unset or unreadable."""
    return _matching(_read_environment(pid) or b"", [os.fsencode(name) + b"="]).get(name)


def started_in(pids: Collection[int], name: str) -> dict[int, str | None]:
    """The variable `name` that each of `pids` was started with; see `started_with`."""
    found = read_proc_of(pids, "environ")
    wanted = [os.fsencode(name) + b"="]
    return {pid: _matching(found.get(pid, b""), wanted).get(name) for pid in pids}


def members(tenant_directory: Path, uid: int | None = None) -> list[int]:
    """Pids of the tenant's processes, including those in containers.

    `uid`: the user whose processes may claim membership by their environment; None for any user.
    """
    found = of_user(members_of(environments(TENANT_VARIABLE), tenant_directory), uid)
    return sorted({*found, *_contained(tenant_directory)})


def _contained(tenant_directory: Path) -> list[int]:
    """Pids of processes in containers that have the tenant's page mounted."""
    page = page_of(tenant_directory / "usage")
    if page is None:
        return []
    found = []
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit():
            with contextlib.suppress(TimeoutError):  # enforcement remembers unreadable processes
                seen = mounted_pages(int(entry), {os.geteuid(), page.uid}.__contains__)
                if seen is not None and seen.tells_of(page):
                    found.append(int(entry))
    return found


def members_of(found: Mapping[int, Mapping[str, str]], tenant_directory: Path) -> list[int]:
    """The pids in `found` (from `environments`) that run under the tenant."""
    return sorted(
        pid for pid, v in found.items() if v.get(TENANT_VARIABLE) == str(tenant_directory)
    )


def of_user(pids: Iterable[int], uid: int | None) -> list[int]:
    """The pids that run as `uid`, or did so before they changed uid; all pids if it is None.

    The check is needed because any user can put a tenant's directory into a process's environment.
    """
    return [pid for pid in pids if uid is None or uid in uids_of(pid)]


def uids_of(pid: int) -> set[int]:
    """Real, effective, saved and file system uids; the owner of /proc files may be root instead."""
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as stream:  # noqa: PTH123
            status = stream.read(8192)
    except OSError:
        return set()
    line = next((one for one in status.split(b"\n") if one.startswith(b"Uid:")), b"")
    return {int(word) for word in line.split()[1:]}


def _read_environment(pid: int) -> bytes | None:
    try:
        return read_proc(pid, "environ")
    except OSError:
        return None


def _matching(raw: bytes, wanted: list[bytes]) -> dict[str, str]:
    variables = {}
    for name in wanted:
        start = 0 if raw.startswith(name) else raw.find(b"\0" + name) + 1
        if start or raw.startswith(name):
            value = raw[start + len(name) :].split(b"\0", 1)[0]
            variables[os.fsdecode(name[:-1])] = os.fsdecode(value)
    return variables


def _is_running_program(pid: int) -> bool:
    """Whether the process has memory of its own; zombies and kernel threads have none."""
    try:
        return b"\nVmSize:" in read_proc(pid, "status")
    except OSError:
        return False
