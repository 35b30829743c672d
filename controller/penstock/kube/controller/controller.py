"""Controller (`penstock kube control`): the reconcile loops of the leader."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.kube.controller.cluster_snapshot import read_claim, read_node, read_slice
from penstock.kube.controller.leader_election import NotLeadingError
from penstock.kube.controller.pending_events import Pending
from penstock.kube.controller.pod_index import Pods
from penstock.kube.controller.pod_metrics import Agents, source_of
from penstock.kube.controller.request_metrics import Pages
from penstock.kube.controller.scaling import Scaler
from penstock.kube.controller.unready_events import Unready
from penstock.kube.objects.api_client import CLAIMS, NODES, PODS, SLICES, ApiError
from penstock.kube.objects.cache import Cache
from penstock.kube.objects.device_class import whose
from penstock.kube.objects.events import CONTROL, About, Events
from penstock.kube.objects.names import METRICS_PORT
from penstock.kube.objects.workloads import (
    AUTOSCALERS,
    DEPLOYMENTS,
    STATEFUL_SETS,
    read_autoscaler,
    read_pod,
    read_workload,
)
from penstock.kube.quota.caps import CAPS, CLASSES, OVER, Counter, read_cap
from penstock.kube.quota.policies import POLICIES, Reach, reach, read_policy, status_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    import aiohttp

    from penstock.kube.controller.leader_election import Leader
    from penstock.kube.controller.pod_metrics import PodUse
    from penstock.kube.controller.request_metrics import Reach as PagesOf
    from penstock.kube.objects.api_client import Api, Kind, Object
    from penstock.kube.objects.cache import Key
    from penstock.kube.objects.device_amounts import Amounts
    from penstock.kube.objects.workloads import Pod, Workload
    from penstock.kube.quota.policies import Policy
    from penstock.policy.schema import Scale

T = TypeVar("T")
ROUND_S = 1.0
EXPLAIN_S = 5.0
TOLD_S = 5.0  # maximum age of the metrics in a status; changes of state are written at once
LISTING = "the API server has not sent its lists yet"
WINDOW_NS = 10 * 10**9  # time over which rates of vGPUs and requests are averaged


@dataclass(frozen=True)
class Sources:
    """The sources of metrics for scaling, chosen by the cluster's administrator."""

    pod_use: PodUse = "metrics"
    qps_pages: PagesOf = "namespace"


class Controller:
    """The controller during one term as the leader, which begins with fresh lists."""

    def __init__(
        self,
        api: Api,
        leader: Leader,
        session: aiohttp.ClientSession,
        *,
        namespace: str,
        sources: Sources,
        report: Callable[..., None],
    ) -> None:
        """Creates a controller; `namespace` is the namespace of our agents' Pods."""
        self._api = api
        self._leader = leader
        self._report = report
        self._problems: dict[str, str] = {}
        self.pods = Pods()
        self.use = source_of(sources.pod_use, api)
        self.agents = Agents(session, WINDOW_NS)
        self.pages = Pages(session, WINDOW_NS, api, sources.qps_pages)
        self._events = Events(api, report, CONTROL)
        self._policies = self._cache(POLICIES, read_policy)
        self._caps = self._cache(CAPS, read_cap)
        self._pods = self._cache(PODS, read_pod)
        self._nodes = self._cache(NODES, read_node)
        self._deployments = self._cache(DEPLOYMENTS, lambda one: read_workload("Deployment", one))
        self._sets = self._cache(STATEFUL_SETS, lambda one: read_workload("StatefulSet", one))
        self._autoscalers = self._cache(AUTOSCALERS, read_autoscaler)
        self._agent_pods = self._cache(PODS, _agent_page, namespace=namespace, labels=METRICS_PORT)
        # Kubernetes releases without DRA do not serve these kinds, but everything else works there.
        self._classes = self._cache(CLASSES, whose)
        self._claims = self._cache(CLAIMS, read_claim)
        self._slices = self._cache(SLICES, read_slice)
        self._caches: tuple[Cache[Any], ...] = (
            self._policies, self._caps, self._classes, self._claims, self._slices, self._nodes,
            self._pods, self._deployments, self._sets, self._autoscalers, self._agent_pods,
        )  # fmt: skip
        self._scaler = Scaler(
            api, leader, self.pods,
            use=self.use, agents=self.agents, pages=self.pages, tell=self._tell,
        )  # fmt: skip
        self._counter = Counter()
        self._pending = Pending(api, leader, self._events)
        self._unready = Unready(leader, self._events)
        self._reach: dict[str, Reach] = {}
        self._dirty: set[str] = set()
        self._told_s: dict[Key, float] = {}
        self._pods.changed.append(self.pods.changed)
        self._pods.changed.append(self._gone)
        self._claims.changed.append(self._gone)
        for cache in (self._policies, self._deployments, self._sets, self._claims):
            cache.changed.append(lambda key, old, new: self._dirty.add(key[0]))  # noqa: ARG005

    def _cache(
        self,
        kind: Kind,
        read: Callable[[Object], T | None],
        *,
        namespace: str = "",
        labels: str = "",
    ) -> Cache[T]:
        return Cache(self._api, kind, read, namespace=namespace, labels=labels, report=self._report)

    async def act(self) -> None:
        """Runs all loops until cancelled."""
        await asyncio.gather(
            *(cache.run() for cache in self._caches),
            self.use.run(),
            self.agents.run(),
            self.pages.run(),
            self._every(ROUND_S, "round", self._round),
            self._every(EXPLAIN_S, "explanations", self._explain),
        )

    def unready(self) -> str:
        """Why it cannot work yet; empty if it works."""
        optional = {id(self._classes), id(self._claims), id(self._slices)}
        for cache in self._caches:
            if not cache.is_ready and not (cache.is_unserved and id(cache) in optional):
                return str(cache.problem or LISTING)
        return ""

    async def _every(self, period_s: float, what: str, act: Callable[[], Awaitable[None]]) -> None:
        while why := self.unready():
            self._once("start", "" if why == LISTING else why)
            await asyncio.sleep(0.1)
        self._once("start", "")
        while True:
            began_s = time.monotonic()
            try:
                await act()
                self._once(what, "")
            except NotLeadingError:
                pass  # this task is about to be cancelled
            except ApiError as error:
                self._once(what, str(error))
            await asyncio.sleep(max(0.05, began_s + period_s - time.monotonic()))

    async def _round(self) -> None:
        self._look()
        self.agents.pages = {one.node: one.page for one in self._agent_pods.objects.values()}
        autoscaled = {one.target: one.name for one in self._autoscalers.objects.values()}
        await self._scaler.round(self._wanted(), autoscaled)
        await self._say()
        await self._count()

    def _look(self) -> None:
        """Recomputes the reach of policies in namespaces where something changed."""
        dirty = self._dirty | self.pods.dirty
        self._dirty, self.pods.dirty = set(), set()
        if not dirty:
            return
        by_namespace: dict[str, list[Policy]] = defaultdict(list)
        for (namespace, _), policy in self._policies.objects.items():
            by_namespace[namespace].append(policy)
        workloads: dict[str, list[Workload]] = defaultdict(list)
        for cache in (self._deployments, self._sets):
            for (namespace, _), workload in cache.objects.items():
                if namespace in by_namespace:
                    workloads[namespace].append(workload)
        ours = self._ours()
        for namespace in dirty:
            if namespace not in by_namespace:
                self._reach.pop(namespace, None)
                continue
            pods = self.pods.by_namespace.get(namespace, {}).values()
            self._reach[namespace] = reach(
                by_namespace[namespace],
                ((pod, self._asks(pod, ours)) for pod in pods),
                workloads[namespace],
            )

    def _asks(self, pod: Pod, ours: set[str]) -> bool:
        """Whether a Pod requests vGPUs, in either allocation mode."""
        return bool(pod.asks) or any(
            claim.amounts(ours)
            for _, name in pod.claims
            if (claim := self._claims.objects.get((pod.namespace, name)))
        )

    def _ours(self) -> set[str]:
        return {name for (_, name), one in self._classes.objects.items() if one == "ours"}

    def _wanted(self) -> Iterable[tuple[Workload, Scale]]:
        for (namespace, name), policy in self._policies.objects.items():
            found = self._reach.get(namespace)
            if policy.spec is None or policy.spec.scale is None or found is None:
                continue
            if found.rivals.get(name):
                continue
            for seen in found.targets.get(name, []):
                workload = self._now(seen)
                if workload is not None:
                    yield workload, policy.spec.scale

    def _now(self, seen: Workload) -> Workload | None:
        cache = self._deployments if seen.kind == "Deployment" else self._sets
        return cache.objects.get((seen.namespace, seen.name))

    async def _say(self) -> None:
        """Writes the status of each policy whose status has changed."""
        for key, policy in list(self._policies.objects.items()):
            found = self._reach.get(policy.namespace)
            if found is None:
                continue
            targets = self._told(policy, found)
            status = status_of(policy, found, targets)
            if status == policy.status:
                continue
            fresh = time.monotonic() - self._told_s.get(key, -TOLD_S) < TOLD_S
            if fresh and _states(status) == _states(policy.status):
                continue
            self._told_s[key] = time.monotonic()
            body = {
                "metadata": {"resourceVersion": policy.version},
                "status": {**status, "targets": targets or None},
            }
            self._leader.check()
            try:
                await self._api.patch(POLICIES, policy.name, body, policy.namespace, "status")
            except ApiError as error:
                if error.status not in {404, 409}:
                    raise

    def _told(self, policy: Policy, found: Reach) -> list[Object]:
        if policy.spec is None or policy.spec.scale is None:
            return []
        several = [self._now(seen) for seen in found.targets.get(policy.name, [])]
        told = [self._scaler.told(workload) for workload in several if workload is not None]
        return sorted(told, key=lambda one: (one["kind"], one["name"]))

    async def _count(self) -> None:
        """Counts the quantities that capped namespaces hold, and updates the caps."""
        if not self._caps.objects:
            return
        held = self._held()
        versions = {"claims": self._claims.version, "pods": self._pods.version}
        for (namespace, _), cap in list(self._caps.objects.items()):
            seen = {}
            if any(OVER in key for key in cap.pending):
                seen = {
                    pod.uid: pod.version
                    for (where, _), pod in self._pods.objects.items()
                    if where == namespace
                }
            body = self._counter.fold(cap, held[namespace], versions, seen)
            if body is None:
                continue
            self._leader.check()
            try:
                await self._api.replace(CAPS, body, namespace, "status")
            except ApiError as error:
                if error.status not in {404, 409}:
                    raise
        self._counter.forget()

    def _held(self) -> dict[str, dict[str, Amounts]]:
        """The quantities that claims and Pods hold, by capped namespace and uid."""
        classes = {name for (_, name), one in self._classes.objects.items() if one != "theirs"}
        held: dict[str, dict[str, Amounts]] = {ns: {} for ns, _ in self._caps.objects}
        for (namespace, _), claim in self._claims.objects.items():
            if namespace in held and (amounts := claim.amounts(classes)):
                held[namespace][claim.uid] = amounts
        for namespace, mine in held.items():
            for pod in self.pods.by_namespace.get(namespace, {}).values():
                if pod.asks:
                    mine[pod.uid] = pod.asks
        return held

    async def _explain(self) -> None:
        await self._pending.round(
            self.pods,
            self._nodes.objects.values(),
            self._slices.objects.values(),
            self._claims.objects,
            {name: one == "ours" for (_, name), one in self._classes.objects.items()},
        )

        pods = (pod for by in self.pods.by_namespace.values() for pod in by.values())
        served = {one.node for one in self._agent_pods.objects.values() if one.ready}
        await self._unready.round(pods, served)

    def _gone(self, key: Key, old: object, new: object) -> None:  # noqa: ARG002
        if new is None and old is not None:
            self._counter.ended(old.uid)  # type: ignore[attr-defined] # a Pod or a Claim

    async def _tell(self, workload: Workload, reason: str, text: str) -> None:
        self._report(reason, workload=str(workload), why=text)
        about = About("apps/v1", workload.kind, workload.namespace, workload.name, workload.uid)
        await self._events.write(about, reason, text, warning=reason != "Scaled")

    def _once(self, what: str, problem: str) -> None:
        """Reports a problem when it begins and when it is over."""
        if self._problems.get(what, "") == problem:
            return
        self._problems[what] = problem
        self._report("problem" if problem else "problem over", part=what, problem=problem)


def _states(status: Object) -> object:
    """The parts of a status whose changes are written at once, unlike metrics and texts."""
    return (
        status.get("observedGeneration"),
        status.get("conditions"),
        status.get("pods"),
        [
            (one["kind"], one["name"], one.get("state"), one.get("replicas"), one.get("wanted"))
            for one in status.get("targets") or []
        ],
    )


@dataclass(frozen=True)
class _Agent:
    """The Pod of one of our agents."""

    node: str
    page: str  # URL
    ready: bool


def _agent_page(one: Object) -> _Agent | None:
    """Reads an agent's Pod, whose label holds the port of its metrics page."""
    port = one["metadata"]["labels"].get(METRICS_PORT, "")
    address = (one.get("status") or {}).get("podIP") or ""
    node = one["spec"].get("nodeName") or ""
    if not (port.isdecimal() and address and node):
        return None
    host = f"[{address}]" if ":" in address else address
    conditions = {c["type"]: c["status"] for c in one["status"].get("conditions") or []}
    ready = conditions.get("Ready") == "True"
    return _Agent(node, f"http://{host}:{port}/metrics", ready)
