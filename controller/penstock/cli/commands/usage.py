"""`penstock usage`: metered usage over a time range, by tenant, user, policy or device."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.cli.options import Output, OutputFormat, StateDir, one_of

if TYPE_CHECKING:
    from penstock.node.metering.usage import Usage

NS = 1_000_000_000


class By(str, Enum):
    """How usage is grouped."""

    value: Literal["tenant", "user", "policy", "device"]
    tenant = "tenant"
    user = "user"
    policy = "policy"
    device = "device"


def usage(
    tenant: Annotated[str | None, typer.Argument(help="Show only this tenant.")] = None,
    since: Annotated[
        str,
        typer.Option(metavar="TIME", help="Start: how long ago (1h, 30m), or a date (2026-05-01)."),
    ] = "1h",
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="End, written like --since (default: now).")
    ] = None,
    by: Annotated[
        By, typer.Option(parser=one_of(By), metavar="WHAT", help="tenant, user, policy or device.")
    ] = By.tenant,
    output: OutputFormat = Output.table,
    meter_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Read the usage records in DIR, with or without an agent (default: from the "
            "running agent; without one, /var/lib/penstock for root, $XDG_STATE_HOME/penstock).",
        ),
    ] = None,
    state_dir: StateDir = None,
) -> None:
    """Show tenants' usage as metered by the agent: device time, and memory over time.

    Usage is stored per minute, and older usage per hour and later per day. An interval that lies
    only partly in the time range counts in full. Times without a time zone are local.
    """
    now_s = time.time()
    since_s = _time_of("--since", since, now_s)
    until_s = now_s + 1 if until is None else _time_of("--until", until, now_s)
    if since_s >= until_s:
        from penstock.model import PenstockError

        raise PenstockError(
            "empty time range",
            f"its start {_iso(since_s)} is not before its end {_iso(until_s)}",
            "give an earlier --since, or a later --until",
        )  # fmt: skip
    found = _used(int(since_s), int(until_s), by, tenant, state_dir, meter_dir)
    if output is not Output.table:
        from penstock.cli.render.output import print_data

        data = {
            "since": _iso(found.since_s),
            "until": _iso(found.until_s),
            "covered_since": None
            if found.covered_since_s is None
            else _iso(max(found.covered_since_s, 0)),
            "by": by.value,
            "usage": [row.as_dict() for row in found.rows],
        }
        print_data(data, output)
        return
    if not found.rows:
        print(f"no usage since {_iso(found.since_s)}")
        return
    from penstock.cli.render.table import console, usage_table

    console().print(usage_table(found.rows, by.value))


def _used(
    since_s: int,
    until_s: int,
    by: By,
    tenant: str | None,
    state_dir: Path | None,
    meter_dir: Path | None,
) -> Usage:
    """Usage from the records in `meter_dir` if given, otherwise from the running agent."""
    from penstock.node.tenants.state import agent_sockets

    if meter_dir is None and agent_sockets(state_dir):  # checked without loading gRPC
        from penstock.node.rpc import find_agent

        agent = find_agent(state_dir)
        if agent is not None:
            with agent:
                return agent.used(since_s, until_s, by=by.value, tenant=tenant)
    from penstock.node.metering.usage import read_usage_since

    return read_usage_since(since_s, until_s, by=by.value, tenant=tenant, directory=meter_dir)


def _time_of(option: str, text: str, now_s: float) -> float:
    """Unix time of "90m" (90 minutes ago) or of an ISO 8601 date. Raises `PenstockError`."""
    from penstock.model import PenstockError, QuantityError, parse_duration_ns

    if text.strip() == "now":
        return now_s
    try:
        days = text.strip().removesuffix("d")
        if days != text.strip() and days.isascii() and days.isdigit():
            ago_ns = parse_duration_ns(f"{int(days) * 24}h")
        else:
            ago_ns = parse_duration_ns(text)
        return now_s - ago_ns / NS
    except QuantityError:
        pass
    try:
        # Python 3.10 does not parse the suffix Z.
        moment = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
        return moment.timestamp()
    except (ValueError, OverflowError, OSError):
        raise PenstockError(
            f"invalid time {text!r} for {option}", "it is neither a duration nor a date",
            "write it like 90m, 1h, 7d, 2026-05-01 or 2026-05-01T12:00:00Z",
        ) from None  # fmt: skip


def _iso(time_s: float) -> str:
    try:
        return datetime.fromtimestamp(time_s, timezone.utc).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return str(time_s)
