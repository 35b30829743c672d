"""Helpers of the meter's tests: made-up clocks and readings, and sums straight from the file."""

from __future__ import annotations

import dataclasses
import sqlite3
from typing import TYPE_CHECKING

from penstock.node.metering.clock import Moment
from penstock.node.metering.metered_amounts import FIELDS, Amounts
from penstock.node.metering.reading import DeviceReading, Identity, Measured, TenantReading
from penstock.node.metering.store import FILE

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000
GIB = 1 << 30
START = Moment(1_800_000_000 * S, 5_000 * S, "boot-1")
UUID = "GPU-00000000-0000-0000-0000-000000000001"
ALICE = Identity("2026-01-01T00:00:00.000001+00:00/1:1", "train", "alice", "small")


def later(seconds: float, of: Moment = START, *, jump_s: float = 0) -> Moment:
    """`seconds` after `of`; the wall clock jumped by `jump_s` meanwhile."""
    passed = round(seconds * S)
    return Moment(of.wall_ns + passed + round(jump_s * S), of.mono_ns + passed, of.boot_id)


def reading(spent_s: float = 0, held: int = 0, *, who: Identity = ALICE, **more) -> TenantReading:
    more.setdefault("origin_ns", START.mono_ns)
    measured = Measured(**more.pop("measured", {}))
    device = DeviceReading(
        more.pop("uuid", UUID), round(spent_s * S), held, measured=measured, **more
    )
    return TenantReading(who, (device,))


def another(number: int, **fields) -> Identity:
    """An identity with a new usage page, by the same name or another."""
    return dataclasses.replace(ALICE, incarnation=f"other/{number}", **fields)


def stored(directory: Path, where: str = "1") -> Amounts:
    """The sums of all that is in the file, read without the code under test."""
    connection = sqlite3.connect(directory / FILE)
    try:
        sums = ", ".join(f"SUM(usage.{name})" for name in FIELDS)
        row = connection.execute(
            f"SELECT {sums} FROM usage JOIN account ON account.id = account_id "  # noqa: S608
            f"JOIN tenant ON tenant.id = tenant_id WHERE {where}"
        ).fetchone()
    finally:
        connection.close()
    return Amounts(*(value or 0 for value in row))


def places(directory: Path) -> list[tuple[int, int, int]]:
    """Unit, start and charged nanoseconds of each row."""
    connection = sqlite3.connect(directory / FILE)
    try:
        return connection.execute(
            "SELECT unit_s, start_s, charged_ns FROM usage ORDER BY 1, 2"
        ).fetchall()
    finally:
        connection.close()
