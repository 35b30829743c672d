"""`penstock events TENANT`: what happened to a tenant, and why."""

from __future__ import annotations

import contextlib
import json
import time
from datetime import timezone
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import Output, OutputFormat, StateDir, TenantName

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.model import PenstockError
    from penstock.node.rpc import AgentClient

LOOK_S = 0.2


def events(
    tenant: TenantName,
    output: OutputFormat = Output.table,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Print new events until the tenant ends."),
    ] = False,
    state_dir: StateDir = None,
) -> None:
    """Show a tenant's events with their reasons: refusals, and steps taken against excess use."""
    coming = _coming(state_dir, tenant, follow=follow)
    if follow:
        _follow(coming, output)
        return
    known = list(coming)
    if output is Output.table:
        for line in _table(known):
            print(line)
        return
    from penstock.cli.render.output import print_data

    print_data(known, output)


def _coming(state_dir: Path | None, name: str, *, follow: bool) -> Iterator[dict[str, object]]:
    """A tenant's events, from its files if this user may read them, otherwise from the agent.

    Raises:
        PenstockError: there is no such tenant; the error is raised before the first event.
    """
    from penstock.model import PenstockError
    from penstock.node.tenants.state import State
    from penstock.node.tenants.tenant import find_tenant
    from penstock.node.tenants.tenant_events import read_events
    from penstock.node.tenants.tombstones import read_ended

    try:
        directory = find_tenant(State.read(state_dir), name).directory
    except PenstockError as error:
        from penstock.cli.by_agent import agent_of_another

        with contextlib.suppress(PenstockError):  # the tenant may belong to root's agent
            if ended := read_ended(State.read(state_dir).directory, name):
                return iter(ended)
        agent = agent_of_another(state_dir)
        if agent is None:
            raise _gone(error) from error
        return _told(agent, name, follow=follow)
    return _recorded(directory) if follow else iter(read_events(directory))


def _gone(error: PenstockError) -> PenstockError:
    from penstock.model import PenstockError

    if error.reason != "no-such-tenant":
        return error
    why = (
        f"{error.why}; no events are kept under that name (those of ended tenants are, for seven "
        "days)"
    )
    return PenstockError(error.what, why, error.fix, reason=error.reason)


def _told(agent: AgentClient, name: str, *, follow: bool) -> Iterator[dict[str, object]]:
    """A tenant's events as received from the agent, in the format of its event files."""
    from penstock.model import PenstockError

    try:
        with agent:
            for message in agent.events([name], follow=follow):
                moment = message.time.ToDatetime(timezone.utc)
                yield {
                    "time": moment.isoformat(timespec="milliseconds"),
                    "event": message.event,
                    **({"reason": message.reason} if message.reason else {}),
                    **json.loads(message.details),
                }
    except PenstockError as error:
        raise (_gone(error) if error.reason == "no-such-tenant" else error) from error


def _follow(events: Iterator[dict[str, object]], output: Output) -> None:
    """Prints each event as it arrives: as a line, a JSON object or a YAML document."""
    for event in events:
        if output is Output.table:
            print(_line(event), flush=True)
        elif output is Output.json:
            print(json.dumps(event), flush=True)
        else:
            import yaml

            text = yaml.safe_dump(event, sort_keys=False, allow_unicode=True)
            print(f"---\n{text}", end="", flush=True)


def _recorded(directory: Path) -> Iterator[dict[str, object]]:
    """Recorded events, then new events until the tenant's directory is removed."""
    from penstock.node.tenants.tenant_events import read_events

    told: list[dict[str, object]] = []
    stamp = None
    while True:
        is_there = directory.exists()
        before, stamp = stamp, _stamp(directory)
        known = read_events(directory) if is_there and (stamp != before or stamp is None) else []
        # At its size limit the file drops its oldest events, so search for the last event yielded.
        start = 0
        if told:
            start = next((i + 1 for i in range(len(known) - 1, -1, -1) if known[i] == told[-1]), 0)
        yield from known[start:]
        told = known[-1:] or told
        if not is_there:
            return
        time.sleep(LOOK_S)


def _stamp(directory: Path) -> tuple[int, int] | None:
    """A stamp that changes when an event is recorded; None if the file cannot be examined."""
    from penstock.node.tenants.tenant_events import FILE

    try:
        found = (directory / FILE).stat()
    except OSError:
        return None
    return found.st_ino, found.st_size


def _table(known: list[dict[str, object]]) -> Iterator[str]:
    yield f"{'TIME':<24}  {'EVENT':<16}  REASON"
    for event in known:
        yield _line(event)


def _line(event: dict[str, object]) -> str:
    """One event as a line of text: time, event, reason, and the processes if known."""
    reason = event.get("reason") or _rest(event)
    processes = event.get("processes")
    who = ""
    if isinstance(processes, list):
        names = [
            f"{one.get('pid')} ({_plain(one.get('command', ''))})"
            for one in processes[:8]
            if isinstance(one, dict)
        ]
        who = f" [pid {', '.join(names)}{', …' if len(processes) > 8 else ''}]"
    when = _plain(event.get("time", "")).replace("+00:00", "Z")[:24]
    return f"{when:<24}  {_plain(event.get('event', '')):<16}  {_plain(reason)}{who}"


def _rest(event: dict[str, object]) -> str:
    return ", ".join(
        f"{key} {value}" for key, value in event.items() if key not in {"time", "event"}
    )


def _plain(value: object) -> str:
    """Replaces unprintable characters so that a command's name cannot move the cursor."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in str(value))
