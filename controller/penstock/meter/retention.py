"""How long amounts stay as fine as they were, and how much room they may take.

Age is counted in minutes, hours and days that hold anything, newest first, never by asking what
time it is: a clock that jumps ahead by ten years makes nothing old.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.meter.amounts import FIELDS
from penstock.meter.batch import DAY_S, HOUR_S, MINUTE_S
from penstock.model import PenstockError

if TYPE_CHECKING:
    import sqlite3

    from penstock.meter.store import Store

_SUMS = ", ".join(f"SUM({name})" for name in FIELDS)
_ADDS = ", ".join(f"{name} = {name} + excluded.{name}" for name in FIELDS)


@dataclass(frozen=True)
class Retention:
    """How many are kept of each. Raises `PenstockError` for less than one."""

    minutes: int = 24 * 60  # then they are told by the hour
    hours: int = 60 * 24  # then by the day
    days: int = 400  # then they are deleted
    rows: int = 1_000_000  # of each kind at most: some 100 MB

    def __post_init__(self) -> None:
        if min(self.minutes, self.hours, self.days, self.rows) < 1:
            raise PenstockError(
                "meter readings would be kept for no time at all", str(self), "keep at least 1"
            )


def roll_up(store: Store, keep: Retention) -> None:
    """Makes old amounts coarser and deletes the oldest days. Raises `sqlite3.Error`: as before."""
    with store.transaction() as connection:
        _coarsen(
            connection, MINUTE_S, HOUR_S, _oldest_kept(connection, MINUTE_S, keep.minutes, keep)
        )
        _coarsen(connection, HOUR_S, DAY_S, _oldest_kept(connection, HOUR_S, keep.hours, keep))
        oldest_s = _oldest_kept(connection, DAY_S, keep.days, keep)
        if oldest_s is not None:
            connection.execute(
                "DELETE FROM usage WHERE unit_s = ? AND start_s < ?", (DAY_S, oldest_s)
            )
            # What was counted of a tenant that lives must stay known, or it counts again from 0.
            connection.execute(
                "DELETE FROM account WHERE id NOT IN (SELECT account_id FROM usage) "
                "AND wall_ns < ? * 1000000000",
                (oldest_s,),
            )
            connection.execute("DELETE FROM tenant WHERE id NOT IN (SELECT tenant_id FROM account)")
    store.give_back_room()


def _oldest_kept(
    connection: sqlite3.Connection, unit_s: int, count: int, keep: Retention
) -> int | None:
    """Start of the oldest to be kept; None: all are. The newest is always kept."""
    rows, starts = 0, 0
    oldest_s: int | None = None
    for start_s, held in connection.execute(
        "SELECT start_s, COUNT(*) FROM usage WHERE unit_s = ? GROUP BY start_s "
        "ORDER BY start_s DESC",
        (unit_s,),
    ):
        rows, starts = rows + held, starts + 1
        if oldest_s is not None and (starts > count or rows > keep.rows):
            return oldest_s
        oldest_s = int(start_s)
    return None


def _coarsen(
    connection: sqlite3.Connection, fine_s: int, coarse_s: int, oldest_s: int | None
) -> None:
    if oldest_s is None:
        return
    connection.execute(
        f"INSERT INTO usage SELECT {coarse_s}, "  # noqa: S608 - numbers and names of ours
        f"start_s - (start_s % {coarse_s} + {coarse_s}) % {coarse_s} AS coarse, account_id, "
        f"{_SUMS} "
        "FROM usage WHERE unit_s = ? AND start_s < ? GROUP BY coarse, account_id "
        f"ON CONFLICT DO UPDATE SET {_ADDS}",
        (fine_s, oldest_s),
    )
    connection.execute("DELETE FROM usage WHERE unit_s = ? AND start_s < ?", (fine_s, oldest_s))
