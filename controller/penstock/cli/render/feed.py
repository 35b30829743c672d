"""Data for `penstock top`, from the node's agent or, without one, from the state directory."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.cli.render.foreign import foreign_lines
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from penstock.node.rpc import AgentClient, NodeMessage, TenantMessage, UsageMessage
    from penstock.node.supervision.tenant_report import Row
    from penstock.node.tenants.state import State

# How long to wait for the first values of all tenants. The agent samples a new tenant within one
# second and reports the sample within another second.
FIRST_FIGURES_S = 2.5
UNTOLD = "the agent has not reported its usage yet"


@dataclass(frozen=True)
class DeviceLine:
    """One device, and its tenants' grants and usage."""

    index: int
    name: str
    simulated: bool
    memory_bytes: int
    memory_granted_bytes: int
    memory_used_bytes: int
    cores_granted_permille: int
    cores_used_permille: int


@dataclass(frozen=True)
class TenantLine:
    """One tenant on one device."""

    row: Row
    suspended: bool | None  # None if not known

    def as_dict(self) -> dict[str, object]:
        """The line as plain values in base units, for JSON and YAML."""
        return {**self.row.as_dict(), "suspended": self.suspended}


@dataclass(frozen=True)
class Picture:
    """A snapshot of the node."""

    title: str
    devices: tuple[DeviceLine, ...]
    tenants: tuple[TenantLine, ...]
    problem: str | None = None  # why the snapshot is stale
    notes: tuple[str, ...] = ()  # further remarks about the node


class Feed(Protocol):
    """A source of snapshots."""

    def picture(self) -> Picture:
        """The node as it is now. Raises `PenstockError` if it could never be read."""

    def close(self) -> None:
        """Closes connections."""


def open_feed(state_dir: Path | None, interval_s: float) -> Feed:
    """A feed from the agent if it responds, else from `state_dir`. Raises `PenstockError`."""
    from penstock.node.tenants.state import State, agent_sockets

    if agent_sockets(state_dir):  # checked without loading gRPC
        from penstock.node.rpc import find_agent

        agent = find_agent(state_dir)
        if agent is not None:
            return AgentFeed(agent, lambda: find_agent(state_dir), interval_s)
    return StateFeed(State.read(state_dir))


class StateFeed:
    """Feed from tenants' files and from the devices, for the user who owns the tenants."""

    def __init__(self, state: State) -> None:
        """Takes the first sample; a rate needs two samples, some time apart."""
        from penstock.node.supervision.tenant_report import Reporter
        from penstock.node.tenants.tenant import collect_if_writable

        collect_if_writable(state)
        self._state = state
        self._reporter = Reporter(state)
        self._reporter.rows()
        self._began_s = time.monotonic()
        self._sizes: dict[str, int] = {}  # bytes of each device's memory

    def picture(self) -> Picture:
        """See `Feed`."""
        time.sleep(max(0.0, self._began_s + 0.5 - time.monotonic()))
        rows = self._reporter.rows()
        for row in rows:
            if row.device_uuid and row.device_uuid not in self._sizes:
                self._learn_sizes(row.tenant)
        count = len({row.tenant for row in rows})
        return Picture(
            f"{self._state.directory}: {_tenants(count)}, no agent",
            _devices_of(rows, self._sizes),
            tuple(TenantLine(row, None) for row in rows),
        )

    def close(self) -> None:
        """See `Feed`."""

    def _learn_sizes(self, tenant: str) -> None:
        from penstock.node.tenants.tenant import Tenant

        try:
            grant = Tenant(self._state.tenants / tenant).grant()
        except PenstockError:
            return  # the tenant has just ended
        self._sizes |= {share.uuid: share.device_memory_bytes for share in grant.devices}


def _devices_of(rows: Iterable[Row], sizes: dict[str, int]) -> tuple[DeviceLine, ...]:
    """The devices that have tenants; a state directory has no record of other devices."""
    found: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        if row.device_index is not None:
            found.setdefault((row.device_index, row.device_uuid), []).append(row)
    return tuple(
        DeviceLine(
            index,
            own[0].device_name,
            own[0].simulated,
            sizes.get(uuid, 0),
            sum(row.memory_quota_bytes or 0 for row in own if row.suspension != "released"),
            sum(row.memory_used_bytes or 0 for row in own),
            sum(row.cores_quota_permille or 0 for row in own if row.suspension != "released"),
            sum(row.cores_used_permille or 0 for row in own),
        )
        for (index, uuid), own in sorted(found.items())
    )


class AgentFeed:
    """Feed from the agent, for every user; it continues after a restart of the agent."""

    def __init__(
        self,
        agent: AgentClient,
        find: Callable[[], AgentClient | None],
        interval_s: float,
    ) -> None:
        """`find` returns a client of a restarted agent; snapshots are `interval_s` apart."""
        self._find = find
        self._interval_s = interval_s
        self._agent: AgentClient | None = agent
        self._usage = _Usage(agent, interval_s)
        self._last: Picture | None = None

    def picture(self) -> Picture:
        """See `Feed`. While the agent does not respond, the last snapshot with the reason."""
        try:
            if self._agent is None:
                self._connect()
            self._last = self._look()
        except PenstockError as error:
            if self._last is None:
                raise
            self.close()
            why = f"{error.what}: {error.why}; trying again"
            last = self._last
            return Picture(last.title, last.devices, last.tenants, why)
        return self._last

    def close(self) -> None:
        """See `Feed`."""
        if self._agent is not None:
            self._agent.close()
            self._agent = None

    def _connect(self) -> None:
        agent = self._find()
        if agent is None:
            raise PenstockError("no agent answers", "it has ended, or is starting")
        self._agent = agent
        self._usage = _Usage(agent, self._interval_s)

    def _look(self) -> Picture:
        agent = self._agent
        if agent is None:
            raise AssertionError
        node, tenants = agent.node(), agent.tenants()
        if self._usage.ended:
            raise PenstockError("the agent no longer reports usage", "its stream has ended")
        reports = self._usage.of({tenant.name for tenant in tenants})
        if any(tenant.name not in reports for tenant in tenants):
            there = {tenant.name for tenant in agent.tenants()}  # a tenant may have ended meanwhile
            tenants = [one for one in tenants if one.name in reports or one.name in there]
        lines = [
            TenantLine(row, tenant.suspended)
            for tenant in tenants
            for row in _rows_of(tenant, reports.get(tenant.name), node)
        ]
        words = "enforced" if node.enforces else "cooperative: the agent is not root"
        title = f"{node.name}: {_tenants(node.tenants)}, {words}, agent {node.version}"
        notes = tuple(foreign_lines(node))
        return Picture(title, _devices_by(node, lines), tuple(lines), notes=notes)


class _Usage:
    """The newest usage report of each tenant, received by a separate thread."""

    def __init__(self, agent: AgentClient, interval_s: float) -> None:
        self.ended = False
        self._patience_s = FIRST_FIGURES_S
        self._reports: dict[str, UsageMessage] = {}
        self._came = threading.Condition()
        arguments = (agent, interval_s)
        threading.Thread(target=self._listen, args=arguments, name="usage", daemon=True).start()

    def of(self, names: set[str]) -> dict[str, UsageMessage]:
        """Reports of the tenants `names`, dropping all others; the first call waits for them."""
        with self._came:
            self._came.wait_for(
                lambda: self.ended or names <= self._reports.keys(), self._patience_s
            )
            self._patience_s = 0.0  # later calls do not wait, because the next call follows soon
            self._reports = {name: one for name, one in self._reports.items() if name in names}
            return dict(self._reports)

    def _listen(self, agent: AgentClient, interval_s: float) -> None:
        try:
            for report in agent.usage(min(interval_s, 1.0)):
                with self._came:
                    self._reports[report.tenant] = report
                    self._came.notify_all()
        except (PenstockError, ValueError):  # the agent is gone, or `close` closed the connection
            pass
        finally:
            with self._came:
                self.ended = True
                self._came.notify_all()


def _rows_of(tenant: TenantMessage, report: UsageMessage | None, node: NodeMessage) -> list[Row]:
    """One row per device of the tenant; None for values that the agent does not report."""
    from penstock.node.rpc import mode_of
    from penstock.node.supervision.tenant_report import Row

    used = {one.device_uuid: one for one in report.devices} if report else {}
    rows = []
    for share in tenant.shares:
        figures = used.get(share.device_uuid)
        rows.append(
            Row(
                tenant=tenant.name,
                user=tenant.user,
                command=tuple(tenant.command),
                mode=mode_of(tenant),
                device_index=share.device_index,
                device_uuid=share.device_uuid,
                device_name=share.device_name,
                simulated=bool(node.machine),
                memory_used_bytes=figures.memory_bytes if figures else None,
                memory_peak_bytes=figures.peak_memory_bytes if figures else None,
                memory_quota_bytes=share.memory_bytes,
                cores_used_permille=figures.cores_permille if figures else None,
                cores_quota_permille=share.cores_permille,
                allowance_permille=share.allowance_permille,
                refusals=figures.refusals if figures else None,
                waits=figures.waits if figures else None,
                processes=None,  # the agent reports only the number of processes
                members=None,
                device_memory_bytes=None,
                device_cores_permille=None,
                supervised=True,
                problem=tenant.finding or tenant.suspension_problem or (None if report else UNTOLD),
                told_processes=tenant.processes,
                suspension=tenant.suspension,
                host_memory_bytes=tenant.host_bytes,
            )
        )
    return rows


def _devices_by(node: NodeMessage, lines: Collection[TenantLine]) -> tuple[DeviceLine, ...]:
    memory: dict[str, int] = {}
    cores: dict[str, int] = {}
    for line in lines:
        row = line.row
        memory[row.device_uuid] = memory.get(row.device_uuid, 0) + (row.memory_used_bytes or 0)
        cores[row.device_uuid] = cores.get(row.device_uuid, 0) + (row.cores_used_permille or 0)
    return tuple(
        DeviceLine(
            device.index,
            device.name,
            device.simulated,
            device.memory_bytes,
            max(0, device.memory_bytes - device.free_memory_bytes),
            memory.get(device.uuid, 0),
            max(0, 1000 - device.free_cores_permille),
            cores.get(device.uuid, 0),
        )
        for device in node.devices
    )


def _tenants(count: int) -> str:
    return f"{count} tenant{'' if count == 1 else 's'}"
