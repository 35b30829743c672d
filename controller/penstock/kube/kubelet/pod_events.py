"""Pod events: publishes the agent's events about a tenant as Kubernetes Events of its Pods.

There is one Event for each Pod and kind of event, with a count. On each new connection the agent
sends all events that it has kept, so that restarts do not change the counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.kube.kubelet.allocation import OWNER
from penstock.kube.objects import events
from penstock.kube.objects.api_client import ApiError
from penstock.kube.objects.events import NODE, About
from penstock.model import PenstockError, format_cores, human_memory
from penstock_shim.pages import ADVICES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.kube.kubelet.allocation import Tenants
    from penstock.kube.kubelet.node_pods import NodePod, NodePods
    from penstock.kube.objects.api_client import Api, Object
    from penstock.node.rpc import AgentClient
    from penstock_api.v1 import agent_pb2 as pb

WARNINGS = {  # reason of the Kubernetes Event, by the agent's event
    "deny": "VgpuMemoryDenied",
    "exceeded": "VgpuExceeded",
    "throttle": "VgpuThrottled",
    "suspend": "VgpuSuspended",
    "terminate": "VgpuTerminated",
    "kill": "VgpuKilled",
    "uncharged": "VgpuUncharged",
    "function-refused": "VgpuFunctionRefused",
    "damaged": "VgpuDamaged",
    "page-lost": "VgpuPageLost",
    "device-unhealthy": "VgpuDeviceUnhealthy",
    "device-lost": "VgpuDeviceLost",
    "suspended": "VgpuSuspendedByOrder",
}
NORMALS = {
    "restored": "VgpuRestored",
    "resumed": "VgpuResumed",
    "resized": "VgpuResized",
    "device-recovered": "VgpuDeviceRecovered",
}
REASONS = WARNINGS | NORMALS
SUSPENDING = ("suspend", "suspended")  # by enforcement, and on request
MOVING = frozenset({*SUSPENDING, "restored", "resumed", "throttle", "terminate"})
FLUSH_S = 1.0
AGAIN_S = 2.0
OLDEST_S = 3600.0  # API servers keep Events for an hour, and older ones must not reappear
MOST_WAITING = 4096  # unwritten kinds of events; beyond this limit the oldest are dropped
MOST_AT_ONCE = 50  # Events a second, so that a storm on one node does not reach the API server
MOST_PODS = 8  # Pods of one claim
MOST_MESSAGE = 1000
UNSAID = {  # reason of a request that was made without a reason
    "suspended": "by an administrator, who gave no reason",
    "resumed": "by an administrator, or because the Pod is being deleted",
}
_PIDS = re.compile(r"\bpid (\d+(?:, \d+)*)")
Key = tuple[str, str]  # tenant, event
Log = Any  # log(event, **fields)


@dataclass(frozen=True)
class Told:
    """The events of one kind about one tenant."""

    count: int
    first_s: float  # since 1970 (UTC)
    last_s: float
    message: str  # without the Pod's own pids and container names
    last: pb.Event | None = None

    def message_for(self, pod: NodePod, tenant: pb.Tenant) -> str:
        """The message for a Pod's user, with the pids and container names of the Pod."""
        if self.last is None:
            return self.message
        return message_of(self.last, dict(pod.containers), tenant.labels["container"])

    def and_then(self, event: pb.Event) -> Told:
        """Adds an event, which may represent several occurrences."""
        return Told(
            self.count + _count(event), self.first_s, event.time.ToNanoseconds() / 1e9,
            message_of(event), event,
        )  # fmt: skip


class PodEvents:
    """Follows the agent's events, and writes them as Kubernetes Events."""

    def __init__(
        self,
        api: Api,
        connect: Callable[[], AgentClient],
        tenants: Tenants,
        pods: NodePods,
        *,
        node: str,
        log: Log,
    ) -> None:
        """`connect` opens a separate connection, which is closed to end its stream."""
        self._api = api
        self._connect = connect
        self._tenants = tenants
        self._pods = pods
        self._node = node
        self._log = log
        self._told: dict[Key, Told] = {}
        self._waiting: dict[Key, None] = {}
        self._written: dict[Key, Told] = {}
        self._owned: dict[str, pb.Tenant] = {}  # by name
        self.changed: list[Callable[[], None]] = []
        """Functions called when a tenant may have been suspended or resumed. Must not raise."""

    def why_suspended(self, tenant: str) -> tuple[str, str]:
        """Reason and message of the last Event about a suspension of the tenant."""
        told = [(one, self._told[tenant, one]) for one in SUSPENDING if (tenant, one) in self._told]
        if not told:
            return REASONS["suspended"], ""
        event, last = max(told, key=lambda one: one[1].last_s)
        return REASONS[event], last.message

    async def run(self) -> None:
        """Follows and writes until cancelled."""
        await self._pods.cache.ready()
        following = asyncio.create_task(self._follow())
        try:
            while True:
                await asyncio.sleep(FLUSH_S)
                if following.done():
                    following.result()
                await self._flush()
        finally:
            following.cancel()

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            agent, ended = self._connect(), asyncio.Event()
            self._told.clear()  # the agent sends all events again

            def listen(agent: AgentClient = agent, ended: asyncio.Event = ended) -> None:
                try:
                    for event in agent.events(follow=True):
                        loop.call_soon_threadsafe(self._take, event)
                except (PenstockError, RuntimeError, ValueError):
                    pass  # the agent is gone, or the loop or the connection is closed
                finally:
                    with contextlib.suppress(RuntimeError):  # the loop is closed
                        loop.call_soon_threadsafe(ended.set)

            threading.Thread(target=listen, name="events", daemon=True).start()
            try:
                await ended.wait()
            finally:
                agent.close()
            await asyncio.sleep(AGAIN_S)

    def _take(self, event: pb.Event) -> None:
        if event.event not in REASONS:
            return
        key = (event.tenant, event.event)
        at_s = event.time.ToNanoseconds() / 1e9
        before = self._told.get(key, Told(0, at_s, at_s, ""))
        self._told[key] = before.and_then(event)
        self._waiting[key] = None
        for tell in self.changed if event.event in MOVING else ():
            tell()
        while len(self._waiting) > MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]

    async def _flush(self) -> None:
        if not self._waiting:
            return
        if any(tenant not in self._owned for tenant, _ in self._waiting):
            try:
                self._owned = {one.name: one for one in (await self._tenants.owned()).values()}
            except PenstockError:
                return  # the agent does not respond, so try again later
        for key in list(self._waiting)[:MOST_AT_ONCE]:
            del self._waiting[key]
            told, tenant = self._told.get(key), self._owned.get(key[0])
            if told is None or tenant is None or told == self._written.get(key):
                continue
            if told.last_s < time.time() - OLDEST_S:
                continue
            try:
                for pod in list(self._pods.of(tenant))[:MOST_PODS]:
                    body = event_of(pod, tenant, key[1], told, self._node)
                    await events.put(self._api, body)
                self._written[key] = told
            except ApiError as error:
                if error.is_passing:
                    self._waiting[key] = None
                    return
                self._log("an event cannot be written", why=str(error))
        self._written = {key: told for key, told in self._written.items() if key[0] in self._owned}
        self._told = {
            key: told
            for key, told in self._told.items()
            if key[0] in self._owned or key in self._waiting
        }


def event_of(pod: NodePod, tenant: pb.Tenant, event: str, told: Told, node: str) -> Object:
    """Builds the Event of one kind for a Pod, always with the same name."""
    return events.event_of(
        About.pod(pod.namespace, pod.name, pod.uid), REASONS[event], told.message_for(pod, tenant),
        component=NODE, warning=event in WARNINGS, count=told.count,
        first_s=told.first_s, last_s=told.last_s, key=tenant.labels[OWNER],
    ) | {"source": {"component": NODE, "host": node}, "reportingInstance": node}  # fmt: skip


def message_of(
    event: pb.Event, containers: Mapping[str, str] | None = None, container: str = ""
) -> str:
    """The message for a Pod's user, who has no shell on its node.

    Args:
        event: The agent's event.
        containers: Names of the Pod's containers by the runtime's ids.
        container: The only container with the share; empty if there may be several.
    """
    details = _details(event)
    processes = [
        _Process.read(one, containers or {}, container)
        for one in details.get("processes") or []
        if isinstance(one, dict)
    ]
    parts = [_for_its_user(event.reason or UNSAID.get(event.event, event.event), processes)]
    if "used_bytes" in details and "limit_bytes" in details:
        parts.append(
            f"{details['used_bytes']} of {details['limit_bytes']} bytes were in use, "
            f"{details.get('last_bytes', '?')} more were requested"
        )
    parts += [
        f"{human_memory(one['memory_bytes'])} and {format_cores(one['cores_permille'])} % of "
        f"{one.get('device')} are in force"
        for one in details.get("shares") or []
        if isinstance(one, dict) and _is_share(one)
    ]
    parts += [str(one) for one in processes]
    return "; ".join(parts)[:MOST_MESSAGE]


@dataclass(frozen=True)
class _Process:
    """A process that an event names."""

    pid: str  # on the node
    inner_pid: str  # in the container; empty if not known
    container: str  # the container's name; empty if not known
    command: str

    @classmethod
    def read(cls, one: dict[str, Any], containers: Mapping[str, str], container: str) -> _Process:
        return cls(
            str(one.get("pid")),
            str(one.get("container_pid") or "")[:12],
            containers.get(str(one.get("container_id")), container),
            str(one.get("command"))[:40],
        )

    @property
    def number(self) -> str:
        return self.inner_pid or f"{self.pid} of the node"

    def __str__(self) -> str:
        where = f" of container {self.container}" if self.container else ""
        return f"process {self.number}{where} ({self.command})"


def _for_its_user(reason: str, processes: list[_Process]) -> str:
    """Rewrites a reason with pids of the container, and with advice for a Pod's user."""
    numbers = {one.pid: one.number for one in processes}

    def inside(found: re.Match[str]) -> str:
        pids = found[1].split(", ")
        return "process " + ", ".join(numbers.get(pid, f"{pid} of the node") for pid in pids)

    for advice in ADVICES:
        reason = reason.replace(advice, "delete the Pod, so that its controller creates another")
    return _PIDS.sub(inside, reason)


def _is_share(one: dict[str, Any]) -> bool:
    amounts = one.get("memory_bytes"), one.get("cores_permille")
    return all(isinstance(amount, int) and amount > 0 for amount in amounts)


def _count(event: pb.Event) -> int:
    count = _details(event).get("count", 1)
    return count if isinstance(count, int) and 0 < count < 1 << 31 else 1


def _details(event: pb.Event) -> dict[str, Any]:
    try:
        found = json.loads(event.details or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
