"""Usage report (`penstock usage`): sums over a time range by tenant, user, policy or device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.model import PenstockError
from penstock.node.metering.batch import UNITS_S
from penstock.node.metering.metered_amounts import FIELDS, NS, Amounts
from penstock.node.metering.store import FILE, default_directory, open_readonly

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

By = Literal["tenant", "user", "policy", "device"]
_GROUPS: dict[By, tuple[str, ...]] = {
    "tenant": ("namespace", "pod", "container", "tenant", "user", "policy"),
    "user": ("user",),
    "policy": ("policy",),
    "device": ("device_uuid",),
}
# The sum over a fleet's years does not fit into 64 bits, so both halves are summed and joined here.
_SUMS = ", ".join(f"SUM(usage.{name} >> 24), SUM(usage.{name} & 16777215)" for name in FIELDS)


@dataclass(frozen=True)
class UsageRow:
    """The sums of one group."""

    group: dict[str, str]
    devices: int  # number of devices used
    amounts: Amounts

    def as_dict(self) -> dict[str, object]:
        """Plain values in base units, with whole nanoseconds where seconds would be rounded."""
        amounts = self.amounts
        return {
            **self.group,
            "devices": self.devices,
            "device_seconds": amounts.charged_ns / NS,
            "device_ns": amounts.charged_ns,
            "measured_device_seconds": amounts.measured_ns / NS,
            "memory_byte_seconds": amounts.byte_seconds,
            "measured_memory_byte_seconds": amounts.measured_byte_seconds,
            "metered_seconds": amounts.metered_ns / NS,
            "estimated_seconds": amounts.estimated_ns / NS,
            "suspicious_device_seconds": amounts.suspicious_ns / NS,
            "suspicions": amounts.suspicions,
        }


@dataclass(frozen=True)
class Usage:
    """Use from `since_s` to `until_s` (seconds since 1970, UTC).

    Amounts are kept by the minute, older amounts by the hour, and the oldest by the day. A unit
    that is only partly in the range is counted whole. `covered_since_s` is the start of the first
    unit.
    """

    since_s: int
    until_s: int
    covered_since_s: int | None
    rows: list[UsageRow]


def read_usage_since(
    since_s: int,
    until_s: int,
    *,
    by: By = "tenant",
    tenant: str | None = None,
    directory: Path | None = None,
) -> Usage:
    """Sums use over a time range, most device time first.

    Raises:
        PenstockError: there are no readings, they cannot be read, or none are the tenant's.
    """
    if since_s >= until_s:
        raise PenstockError(
            "there is no time between since and until", f"{since_s} is not before {until_s}",
            "use an earlier --since, or a later --until",
        )  # fmt: skip
    path = (directory or default_directory()) / FILE
    connection = open_readonly(path)
    try:
        if tenant is not None:
            _check_tenant(connection, tenant)
        return _sums(connection, since_s, until_s, by, tenant)
    finally:
        connection.close()


def _sums(
    connection: sqlite3.Connection, since_s: int, until_s: int, by: By, tenant: str | None
) -> Usage:
    columns = _GROUPS[by]
    # One range of the primary key per unit.
    ranges = [f"(unit_s = {unit} AND start_s > ? AND start_s < ?)" for unit in UNITS_S]
    joined = (
        "FROM usage JOIN account ON account.id = account_id JOIN tenant ON tenant.id = tenant_id "
        f"WHERE ({' OR '.join(ranges)})" + (" AND tenant = ?" if tenant else "")
    )
    given: list[object] = [bound for unit in UNITS_S for bound in (since_s - unit, until_s)]
    given += [tenant] if tenant else []
    rows = []
    covered: int | None = None
    for found in connection.execute(
        f"SELECT {', '.join(columns)}, COUNT(DISTINCT device_uuid), MIN(start_s), {_SUMS} "
        f"{joined} GROUP BY {', '.join(columns)}",
        given,
    ):
        values = found[len(columns) :]
        covered = values[1] if covered is None else min(covered, values[1])
        halves = values[2:]
        amounts = Amounts(
            *((high << 24) + low for high, low in zip(halves[::2], halves[1::2], strict=True))
        )
        rows.append(UsageRow(dict(zip(columns, found, strict=False)), values[0], amounts))
    rows.sort(key=lambda row: (-row.amounts.charged_ns, tuple(row.group.values())))
    return Usage(since_s, until_s, covered, rows)


def _check_tenant(connection: sqlite3.Connection, name: str) -> None:
    names = [row[0] for row in connection.execute("SELECT DISTINCT tenant FROM tenant")]
    if name not in names:
        from penstock.model import nearest

        near = nearest(name, names)
        raise PenstockError(
            f"there are no readings of a tenant {name!r}",
            f"did you mean {near}?" if near else "no tenant of that name was metered",
            "run penstock usage to see which tenants were metered",
        )
