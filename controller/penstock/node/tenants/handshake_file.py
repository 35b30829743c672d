"""processes.json: which processes of a tenant shook hands, by their pids on this machine.

The agent writes it; the next agent and `penstock ps` read it. Slots know a process by the pid that
it has for itself, which in a container is another one.
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
    """A process that the kernel named at its tenant's socket, and the slot that it says it has."""

    pid: int  # on this machine, by the kernel
    start_ticks: int  # field 22 of /proc/PID/stat, likewise
    inner_pid: int  # that it has for itself
    slot: int
    owner: int  # the slot's owner word: another process in that slot has another one
    library: str  # release of its shim
    abi_version: int


def write_handshakes(directory: Path, known: Iterable[Handshake]) -> None:
    """Replaces the record whole or not at all. Raises OSError."""
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
    """Those on record since the machine was started, of processes that may have ended meanwhile.

    None where there is no record, or none that can be used.
    """
    try:
        document = json.loads(read_record(directory / FILE))
        if document["boot"] != boot_id():
            return []
        return [_from_plain(one) for one in document["processes"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def host_pids(directory: Path, slots: Iterable[SlotUsage]) -> Mapping[int, int]:
    """The pids on this machine of the processes in `slots`, by slot; others never shook hands."""
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
