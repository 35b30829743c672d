"""Retention of metered amounts: how long each resolution is kept, and how many rows it may use.

If there are too many rows, the owners with the most rows lose some until each has an equal share,
so that one owner's many tenants do not displace the records of others.

Age is counted in minutes, hours and days that have rows, newest first, and not by the current time,
so that a clock that jumps ten years ahead does not make any row old.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.node.metering.batch import DAY_S, HOUR_S, MINUTE_S
from penstock.node.metering.metered_amounts import FIELDS

if TYPE_CHECKING:
    import sqlite3

    from penstock.node.metering.store import Store

_SUMS = ", ".join(f"SUM({name})" for name in FIELDS)
# An owner is a user in a namespace. All users whose name is a number have no account, and count as
# one.
_OWNER = "(CASE WHEN user GLOB '*[^0-9]*' THEN user ELSE '' END || ' ' || namespace)"
_OWNED = f"SELECT account.id FROM account JOIN tenant ON tenant.id = tenant_id WHERE {_OWNER} = ?"  # noqa: S608
_ADDS = ", ".join(f"{name} = {name} + excluded.{name}" for name in FIELDS)


@dataclass(frozen=True)
class Retention:
    """How many of each unit are kept. Raises `PenstockError` if any number is less than one."""

    minutes: int = 24 * 60  # older ones are merged into hours
    hours: int = 60 * 24  # older ones are merged into days
    days: int = 400  # older ones are deleted
    rows: int = 1_000_000  # limit for each unit, for all users together; about 100 MB

    def __post_init__(self) -> None:
        if min(self.minutes, self.hours, self.days, self.rows) < 1:
            raise PenstockError(
                "invalid retention: meter readings would not be kept", str(self), "keep at least 1"
            )


def roll_up(store: Store, keep: Retention) -> None:
    """Merges old amounts and deletes the oldest days. Raises `sqlite3.Error`, changing nothing."""
    with store.transaction() as connection:
        for unit_s, coarse_s, count in (
            (MINUTE_S, HOUR_S, keep.minutes),
            (HOUR_S, DAY_S, keep.hours),
            (DAY_S, None, keep.days),
        ):
            _shorten(connection, unit_s, coarse_s, _oldest_of(connection, unit_s, count))
            for owner, share in _over_their_share(connection, unit_s, keep.rows):
                oldest_s = _oldest_within(connection, unit_s, owner, share)
                _shorten(connection, unit_s, coarse_s, oldest_s, owner)
    store.give_back_room()


def _oldest_of(connection: sqlite3.Connection, unit_s: int, count: int) -> int | None:
    """Start of the oldest of the last `count` units, None if there are no more units than that."""
    starts = connection.execute(
        "SELECT DISTINCT start_s FROM usage WHERE unit_s = ? ORDER BY start_s DESC LIMIT ?",
        (unit_s, count + 1),
    ).fetchall()
    return int(starts[count - 1][0]) if len(starts) > count else None


def _over_their_share(
    connection: sqlite3.Connection, unit_s: int, rows: int
) -> list[tuple[str, int]]:
    """Owners with more rows than their share, and how many rows each of them may keep."""
    held = connection.execute(
        f"SELECT COUNT(*), {_OWNER} AS owner FROM usage JOIN account ON account.id = account_id "  # noqa: S608
        "JOIN tenant ON tenant.id = tenant_id WHERE unit_s = ? GROUP BY owner ORDER BY 1",
        (unit_s,),
    ).fetchall()
    left = rows
    for at, (count, _) in enumerate(held):  # the owners with the fewest rows come first
        share = left // (len(held) - at)
        if count > share:
            return [(str(owner), share) for _, owner in held[at:]]
        left -= count
    return []


def _oldest_within(
    connection: sqlite3.Connection, unit_s: int, owner: str, most: int
) -> int | None:
    """Start of the oldest unit within the owner's last `most` rows; the newest unit stays."""
    rows = 0
    oldest_s: int | None = None
    for start_s, held in connection.execute(
        f"SELECT start_s, COUNT(*) FROM usage WHERE unit_s = ? AND account_id IN ({_OWNED}) "  # noqa: S608
        "GROUP BY start_s ORDER BY start_s DESC",
        (unit_s, owner),
    ):
        rows += held
        if oldest_s is not None and rows > most:
            return oldest_s
        oldest_s = int(start_s)
    return None


def _shorten(
    connection: sqlite3.Connection,
    unit_s: int,
    coarse_s: int | None,
    oldest_s: int | None,
    owner: str | None = None,
) -> None:
    """Merges or deletes amounts older than `oldest_s`, if given only those of `owner`."""
    if oldest_s is None:
        return
    which = ""
    of_whom: tuple[str, ...] = ()
    if owner is not None:
        which, of_whom = f"AND account_id IN ({_OWNED})", (owner,)
    if coarse_s is not None:
        connection.execute(
            f"INSERT INTO usage SELECT {coarse_s}, "  # noqa: S608 - numbers and names of ours
            f"start_s - (start_s % {coarse_s} + {coarse_s}) % {coarse_s} AS coarse, account_id, "
            f"{_SUMS} "
            f"FROM usage WHERE unit_s = ? AND start_s < ? {which} GROUP BY coarse, account_id "
            f"ON CONFLICT DO UPDATE SET {_ADDS}",
            (unit_s, oldest_s, *of_whom),
        )
    connection.execute(
        f"DELETE FROM usage WHERE unit_s = ? AND start_s < ? {which}",  # noqa: S608 - as above
        (unit_s, oldest_s, *of_whom),
    )
    if coarse_s is None:
        # A live tenant's account must stay, or its use would be counted from 0 again.
        connection.execute(
            "DELETE FROM account WHERE id NOT IN (SELECT account_id FROM usage) "  # noqa: S608 - as above
            f"AND wall_ns < ? * 1000000000 {which.replace('account_id', 'id')}",
            (oldest_s, *of_whom),
        )
        connection.execute("DELETE FROM tenant WHERE id NOT IN (SELECT tenant_id FROM account)")
