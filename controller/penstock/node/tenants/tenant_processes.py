"""Who belongs to a tenant: told from /proc alone, so that it holds after any of us was killed."""

from __future__ import annotations

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
    """For every process that was started with one of `names` set: those variables, by pid.

    Zombies and other users' processes tell nothing and are left out. The environment is the one a
    process was started with: a child of a fork has its parent's.
    """
    wanted = [os.fsencode(name) + b"=" for name in names]
    found: dict[int, dict[str, str]] = {}
    unclear = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208
    own = os.getpid()
    # A process in the middle of execve shows an empty environment for a moment: look again.
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
    """The variable that process was started with; None: none, or its environment is not ours."""
    return _matching(_read_environment(pid) or b"", [os.fsencode(name) + b"="]).get(name)


def started_in(pids: Collection[int], name: str) -> dict[int, str | None]:
    """The same of many, for each of them."""
    found = read_proc_of(pids, "environ")
    wanted = [os.fsencode(name) + b"="]
    return {pid: _matching(found.get(pid, b""), wanted).get(name) for pid in pids}


def members(tenant_directory: Path, uid: int | None = None) -> list[int]:
    """Pids of the processes that run under the tenant of `tenant_directory`, containers' too.

    `uid`: whose processes may say by their environment that they do; None: anybody's.
    """
    found = of_user(members_of(environments(TENANT_VARIABLE), tenant_directory), uid)
    return sorted({*found, *_contained(tenant_directory)})


def _contained(tenant_directory: Path) -> list[int]:
    """Those in containers that have the tenant's page mounted."""
    page = page_of(tenant_directory / "usage")
    if page is None:
        return []
    found = []
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit():
            seen = mounted_pages(int(entry), {os.geteuid(), page.uid}.__contains__)
            if seen is not None and seen.tells_of(page):
                found.append(int(entry))
    return found


def members_of(found: Mapping[int, Mapping[str, str]], tenant_directory: Path) -> list[int]:
    """Those of `found` (from `environments`) that run under the tenant."""
    return sorted(
        pid for pid, v in found.items() if v.get(TENANT_VARIABLE) == str(tenant_directory)
    )


def of_user(pids: Iterable[int], uid: int | None) -> list[int]:
    """Those that run as `uid`, or did before they took another; None: all.

    Anybody can put a tenant's directory into an environment of his own.
    """
    return [pid for pid in pids if uid is None or uid in uids_of(pid)]


def uids_of(pid: int) -> set[int]:
    """Real, effective, saved and of files. A file of /proc has root's where a process hides."""
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
    """False for zombies and kernel threads, which have no memory of their own."""
    try:
        return b"\nVmSize:" in read_proc(pid, "status")
    except OSError:
        return False
