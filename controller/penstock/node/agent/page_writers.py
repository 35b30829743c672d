"""Search for the processes that have a page open for writing, through text in /proc only.

The search neither opens nor resolves any file of a user.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from penstock.node.agent.user_limits import person_of
from penstock.node.enforcement.process import Process, find
from penstock.node.tenants.tenant_processes import uids_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.node.agent.person import People
    from penstock.node.tenants.grant import Grant

_FDINFO_BYTES = 4096


def suspects(grant: Grant, people: People) -> Callable[[int], bool]:
    """A predicate on pids that is true if the process belongs to the tenant's owner.

    It is never true for an administrator's tenant, because a system service may hold a descriptor
    that somebody else passed to it and is not to blame for the growth.
    """
    uid, person = grant.uid, person_of(grant)
    if not uid or person is None:
        return lambda _: False
    return lambda pid: any(
        one == uid or people.owner_of(one) == person >= 0 for one in uids_of(pid)
    )


def writers_of(page: int, is_suspect: Callable[[int], bool], within_s: float) -> Iterator[Process]:
    """Other processes that have the file of descriptor `page` open for writing.

    Processes with the fewest descriptors are checked first, so that a process with a million
    descriptors cannot hide the others.

    Args:
        page: A descriptor of the page.
        is_suspect: Whether to check the process with that pid.
        within_s: Time limit of the search; processes not checked within that time are not found.
    """
    until_s = time.monotonic() + within_s
    inode = os.fstat(page).st_ino
    device = _device_of(os.getpid(), page)
    pids = [int(one) for one in os.listdir("/proc") if one.isdigit()]  # noqa: PTH208
    suspects = [pid for pid in pids if pid != os.getpid() and is_suspect(pid)]
    for pid in sorted(suspects, key=_descriptors):
        if _writes(pid, inode, device, until_s) and (process := find(pid)) is not None:
            yield process


def _descriptors(pid: int) -> int:
    """The number of open descriptors of a process; 0 before Linux 6.2."""
    try:
        return os.stat(f"/proc/{pid}/fd").st_size  # noqa: PTH116
    except OSError:
        return 0


def _writes(pid: int, inode: int, device: str | None, until_s: float) -> bool:
    with contextlib.suppress(OSError):  # the process is ending
        for number in os.listdir(f"/proc/{pid}/fdinfo"):  # noqa: PTH208
            if time.monotonic() > until_s:
                return False
            found = _information(pid, number)
            if (
                found.get("ino") == str(inode)
                and int(found.get("flags", "0"), 8) & os.O_ACCMODE != os.O_RDONLY
                and _device_of(pid, number, found) == device
            ):
                return True
    return False


def _information(pid: int, descriptor: int | str) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/fdinfo/{descriptor}", "rb", buffering=0) as file:  # noqa: PTH123
            text = file.read(_FDINFO_BYTES).decode(errors="replace")
    except OSError:  # the descriptor was closed
        return {}
    lines = (one.partition(":") for one in text.split("\n"))
    return {key: value.strip() for key, _, value in lines}


def _device_of(
    pid: int, descriptor: int | str, information: dict[str, str] | None = None
) -> str | None:
    """`major:minor` of the descriptor's file system, from the process's mount table."""
    found = information or _information(pid, descriptor)
    try:
        with open(f"/proc/{pid}/mountinfo", "rb") as mounts:  # noqa: PTH123
            for line in mounts:
                words = line.split(None, 3)
                if len(words) > 2 and words[0].decode() == found.get("mnt_id"):
                    return words[2].decode()
    except OSError:
        return None
    return None
