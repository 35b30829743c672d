"""pool.json, what a node keeps of its compute pool: its identity, the highest term, its devices.

The agent writes the file before it obeys orders of a higher term, so that a manager that was
replaced changes nothing, even after the agent was killed. `penstock run` reads from it which
devices only the pool grants.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.node.tenants.json_files import read_record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from penstock.devices import Device
    from penstock.node.tenants.state import State

FILE = "pool.json"


@dataclass(frozen=True)
class PoolRecord:
    """A node's membership of a compute pool."""

    pool: str = ""  # the pool's identity; empty before its manager's first orders
    term: int = 0  # the highest of its leaders' terms that this node has seen
    devices: tuple[str, ...] = ()  # UUIDs of the devices that only the pool grants


def read_pool_record(state: State) -> PoolRecord | None:
    """The record in the state directory, None if the node is in no pool.

    Raises:
        PenstockError: the record cannot be read. What it said of terms must not be forgotten.
    """
    file = state.directory / FILE
    try:
        found = json.loads(read_record(file))
        devices = tuple(str(one) for one in found["devices"])
        return PoolRecord(str(found["pool"]), int(found["term"]), devices)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise PenstockError(
            f"{file} cannot be used", f"{why}",
            "restore the file, or end the pool's tenants on this node and remove it",
            reason="not-now",
        ) from error  # fmt: skip


def write_pool_record(state: State, record: PoolRecord) -> None:
    """Replaces the record atomically; the replacement survives a power loss.

    Raises:
        OSError: the file cannot be written; the old file is intact.
    """
    file = state.directory / FILE
    aside = file.with_name(f".{FILE}.{os.getpid()}")
    text = json.dumps({"pool": record.pool, "term": record.term, "devices": list(record.devices)})
    try:
        with aside.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(file)
        _sync_directory(state.directory)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def remove_pool_record(state: State) -> None:
    """Forgets the pool. Raises OSError if the file cannot be removed."""
    (state.directory / FILE).unlink(missing_ok=True)


def pool_devices(state: State) -> frozenset[str]:
    """UUIDs of the devices that only the pool grants. Raises `PenstockError` if unreadable."""
    record = read_pool_record(state)
    return frozenset(record.devices if record else ())


def check_not_pools(devices: Iterable[Device], owned: Collection[str]) -> None:
    """Raises `PenstockError` if one of the devices belongs to the compute pool."""
    for device in devices:
        if device.uuid in owned:
            raise PenstockError(
                f"device {device.index} belongs to the compute pool",
                "only the pool grants shares of it",
                "claim blocks of the pool with penstock pool acquire, or name another device",
                reason="not-allowed",
            )


def not_pools(devices: Iterable[Device], owned: Collection[str]) -> list[Device]:
    """The devices that are not the pool's. Raises `PenstockError` if there is none left."""
    devices = list(devices)
    free = [device for device in devices if device.uuid not in owned]
    if not free:
        check_not_pools(devices, owned)
    return free


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
