"""processes.json, a tenant's processes that have completed the handshake, with their host pids.

The agent writes the file; a restarted agent and `penstock ps` read it. A slot contains a process's
pid in its own pid namespace, which differs from the host pid if the process runs in a container.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock.node.tenants.boot_id import boot_id
from penstock.node.tenants.json_files import read_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from penstock_shim.pages import SlotUsage

FILE = "processes.json"


@dataclass(frozen=True)
class Handshake:
    """A peer of the tenant's socket, identified by the kernel, and the slot that it claims."""

    pid: int  # on the host, from the kernel
    start_ticks: int  # field 22 of /proc/PID/stat, from the kernel
    inner_pid: int  # in its own pid namespace
    slot: int
    owner: int  # the slot's owner word, which differs for each process that takes the slot
    library: str  # the release of its shim
    abi_version: int


def write_handshakes(directory: Path, known: Iterable[Handshake]) -> None:
    """Replaces the record atomically. Raises OSError if it cannot be written."""
    document = {"boot": boot_id(), "processes": [asdict(one) for one in known]}
    aside = directory / f".{FILE}.{os.getpid()}"
    try:
        aside.write_text(json.dumps(document), encoding="ascii")
        aside.replace(directory / FILE)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise


def read_handshakes(directory: Path) -> list[Handshake]:
    """The handshakes recorded since boot, even of processes that have ended since.

    Empty if there is no usable record.
    """
    try:
        document = json.loads(read_record(directory / FILE))
        if document["boot"] != boot_id():
            return []
        return [_from_plain(one) for one in document["processes"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def host_pids(directory: Path, slots: Iterable[SlotUsage]) -> Mapping[int, int]:
    """Host pids by slot, for the processes in `slots` that completed a handshake."""
    owners = {slot.owner: slot.slot for slot in slots}
    known = read_handshakes(directory) if owners else []
    return {owners[one.owner]: one.pid for one in known if one.owner in owners}


def _from_plain(plain: dict[str, Any]) -> Handshake:
    return Handshake(
        pid=int(plain["pid"]),
        start_ticks=int(plain["start_ticks"]),
        inner_pid=int(plain["inner_pid"]),
        slot=int(plain["slot"]),
        owner=int(plain["owner"]),
        library=str(plain["library"]),
        abi_version=int(plain["abi_version"]),
    )
