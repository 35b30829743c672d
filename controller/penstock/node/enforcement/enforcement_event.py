"""Enforcement events, as recorded in a tenant's events.jsonl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.node.enforcement.container_pids import look_inside
from penstock.node.enforcement.ladder import Change, Step
from penstock.node.tenants.tenant_events import record_event

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.node.enforcement.process import Process

_NAMES = {
    Step.NONE: "restored",
    Step.DENY: "exceeded",
    Step.THROTTLE: "throttle",
    Step.SUSPEND: "suspend",
    Step.TERMINATE: "terminate",
}


@dataclass(frozen=True)
class Event:
    """One line of a tenant's events.jsonl, without the time."""

    tenant: str
    event: str
    reason: str
    device: str = ""  # UUID
    kind: str = ""
    processes: tuple[Process, ...] = ()

    def record(self, directory: Path) -> None:
        """Appends the event to the events in the tenant's directory."""
        fields: dict[str, object] = {"reason": self.reason}
        if self.device:
            fields["device"] = self.device
        if self.kind:
            fields["kind"] = self.kind
        if self.processes:
            fields["processes"] = [_plain(one) for one in self.processes]
        record_event(directory, self.event, **fields)


def _plain(one: Process) -> dict[str, object]:
    """The process as JSON, including its pid inside its container."""
    inside = look_inside(one.pid)
    plain: dict[str, object] = {"pid": one.pid, "command": one.command}
    if inside.pid:
        plain["container_pid"] = inside.pid
    if inside.container_id:
        plain["container_id"] = inside.container_id
    return plain


def event_of(tenant: str, change: Change) -> Event:
    """The event that records a change of the ladder."""
    return Event(
        tenant=tenant,
        event="kill" if change.killed else _NAMES[change.step],
        reason=change.reason,
        device=change.device,
        kind=change.kind,
        processes=tuple(sorted(change.offenders)),
    )
