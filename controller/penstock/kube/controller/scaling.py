"""Scaling: sets the replicas of Deployments and StatefulSets according to their policy's `scale`.

`penstock.scheduling.replicas.decide` computes the count, as on a plain machine, and this module
writes it to the `scale` subresource. A restart loses nothing, because the count is in the workload.
After a restart, growth and shrinking are delayed as if there had just been a change.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.kube.controller.pod_metrics import shares_of
from penstock.kube.controller.request_metrics import POD, Page, fault_of, pages_of
from penstock.kube.objects.api_client import ApiError
from penstock.kube.objects.workloads import KINDS, QPS_METRIC, QPS_URL, ready_first
from penstock.model.metric import METRICS
from penstock.scheduling.replicas.decide import (
    SETTLE_PARTS,
    Decision,
    History,
    Observation,
    ReplicaSample,
    Sample,
    decide,
    floor_of,
    thresholds_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from penstock.kube.controller.leader_election import Leader
    from penstock.kube.controller.pod_index import Pods
    from penstock.kube.controller.pod_metrics import Agents, Source, Who
    from penstock.kube.controller.request_metrics import Pages
    from penstock.kube.objects.api_client import Api, Object
    from penstock.kube.objects.workloads import Pod, Workload
    from penstock.model.metric import Metric
    from penstock.policy.schema import Scale

Key = tuple[str, str, str]
# How long to wait for the first sample of demand while there is no replica. Without this wait, a
# replica could be started needlessly.
FIRST_DEMAND_NS = 10 * 10**9


@dataclass
class _Target:
    history: History
    began_ns: int
    scale: Scale
    state: str = "Scaling"
    wanted: int = 0
    reason: str = ""
    values: Mapping[Metric, float] = field(default_factory=dict)


class Scaler:
    """Scales all workloads that policies select."""

    def __init__(
        self,
        api: Api,
        leader: Leader,
        pods: Pods,
        *,
        use: Source,
        agents: Agents,
        pages: Pages,
        tell: Callable[[Workload, str, str], Awaitable[None]],
    ) -> None:
        """`tell` reports an action or a refusal, with a workload, a one-word reason and a text."""
        self._api = api
        self._leader = leader
        self._pods = pods
        self._use = use
        self._agents = agents
        self._pages = pages
        self._tell = tell
        self._targets: dict[Key, _Target] = {}

    async def round(
        self, wanted: Iterable[tuple[Workload, Scale]], autoscaled: Mapping[Key, str]
    ) -> None:
        """Decides once for each workload. Call this about every second.

        `autoscaled` contains the names of HorizontalPodAutoscalers, by their targets.

        Raises:
            NotLeadingError: this process does not lead any more.
        """
        several = list(wanted)
        for gone in self._targets.keys() - {workload.key for workload, _ in several}:
            del self._targets[gone]
        by_use: list[Pod] = []
        by_share: list[Pod] = []
        pages: set[Page] = set()
        for workload, scale in several:
            target = self._targets.get(workload.key)
            if target is None or target.scale != scale:
                target = self._targets[workload.key] = _begin(scale, workload)
            pods = ready_first(self._pods.selected(workload.namespace, workload.selector))
            metrics = set(thresholds_of(scale))
            if metrics & {"cpu", "memory"}:
                by_use += pods
            if metrics & {"cores", "vgpu_memory"}:
                by_share += pods
            if "qps" in metrics and not self._fault_of(workload):
                pages.update(pages_of(workload, pods))
            await self._one(workload, target, pods, autoscaled.get(workload.key))
        self._use.want(by_use)
        self._agents.want(by_share)
        self._pages.want(pages)

    def told(self, workload: Workload) -> Object:
        """The entry for a workload in its policy's status."""
        target = self._targets.get(workload.key)
        plain: Object = {
            "kind": workload.kind,
            "name": workload.name,
            "replicas": workload.replicas,
        }
        if target is not None:
            plain |= {"state": target.state, "wanted": target.wanted, "reason": target.reason}
            if target.values:
                plain["metrics"] = {
                    METRICS[metric].key: round(value, 1) for metric, value in target.values.items()
                }
        return plain

    async def _one(
        self, workload: Workload, target: _Target, pods: list[Pod], autoscaler: str | None
    ) -> None:
        scale = target.scale
        before = target.state, target.reason
        if autoscaler is not None:
            target.state, target.wanted, target.values = "Refused", workload.replicas, {}
            target.reason = (
                f"HorizontalPodAutoscaler {autoscaler} scales it: two scalers would undo each "
                "other's work; remove the autoscaler, or remove scale from the policy"
            )
            if before != (target.state, target.reason):
                await self._tell(workload, "ScalingRefused", target.reason)
            return
        if workload.replicas == 0 and floor_of(scale) > 0:
            target.state, target.wanted, target.values = "Off", 0, {}
            target.reason = (
                "its replicas were set to 0, which the policy never does: set them to 1 or more to "
                "resume scaling"
            )
            target.history = _begin(scale, workload).history
            return
        target.state = "Scaling"
        samples, problems = self._samples(workload, scale, pods)
        totals = self._totals(workload, scale)
        now_ns = time.monotonic_ns()
        if workload.replicas == 0 and not totals and now_ns - target.began_ns < FIRST_DEMAND_NS:
            target.reason = "waiting for the first sample of demand"
            return
        observation = Observation(now_ns, samples, totals)
        decision, history = decide(observation, scale, target.history)
        if decision.replicas != workload.replicas and not await self._set(workload, decision):
            return  # the workload has changed in the meantime, and its new version comes next
        target.history = history
        target.wanted, target.values = decision.replicas, decision.values
        target.reason = "; ".join([decision.reason, *problems])

    async def _set(self, workload: Workload, decision: Decision) -> bool:
        """Sets the replicas if the count is still the one that was seen; returns whether it did."""
        kind = KINDS[workload.kind]
        try:
            found = await self._api.get(kind, workload.name, workload.namespace, "scale")
            if found["spec"].get("replicas", 0) != workload.replicas:
                return False
            found["spec"]["replicas"] = decision.replicas
            self._leader.check()
            await self._api.replace(kind, found, workload.namespace, "scale")
        except ApiError as error:
            if error.status in {404, 409}:
                return False
            raise
        await self._tell(
            workload,
            "Scaled",
            f"{workload.replicas} → {decision.replicas} replicas: {decision.reason}",
        )
        return True

    def _samples(
        self, workload: Workload, scale: Scale, pods: list[Pod]
    ) -> tuple[list[ReplicaSample], list[str]]:
        """One sample for each requested replica, and the reasons why metrics are missing."""
        metrics = thresholds_of(scale)
        problems: dict[str, None] = {}
        samples = []
        for pod in pods[: workload.replicas]:
            figures = {
                metric: sample
                for metric in metrics
                if (sample := self._figure(metric, workload, pod, problems)) is not None
            }
            samples.append(ReplicaSample(pod.ready, figures))
        samples += [ReplicaSample(ready=False)] * (workload.replicas - len(samples))
        if "qps" in metrics:
            why = self._fault_of(workload)
            if not why and POD not in workload.qps_url:
                why = self._pages.problem(pages_of(workload, ())[0])
            problems |= {why: None} if why else {}
        return samples, list(problems)[:2]

    def _figure(
        self, metric: Metric, workload: Workload, pod: Pod, problems: dict[str, None]
    ) -> Sample | None:
        match metric:
            case "cpu":
                return self._use_of(metric, pod, pod.cpu_request, self._use.processors, problems)
            case "memory":
                request = pod.memory_request_bytes
                return self._use_of(metric, pod, request, self._use.memory_bytes, problems)
            case "cores":
                return self._share_of(pod, self._agents.cores_percent, problems)
            case "vgpu_memory":
                return self._share_of(pod, self._agents.memory_percent, problems)
            case "qps":
                return self._requests(workload, pod, problems)

    def _use_of(
        self,
        metric: Metric,
        pod: Pod,
        request: float | None,
        used_by: Callable[[Pod], Sample | None],
        problems: dict[str, None],
    ) -> Sample | None:
        """Processor time or memory of a Pod in percent of what its containers request."""
        if request is None:
            problems[f"{METRICS[metric].shown} is unknown: a container requests none of it"] = None
            return None
        used = used_by(pod)
        if used is None and pod.ready and (why := self._use.problem(pod)):
            problems[why] = None
        return Sample(used.at_ns, used.value / request * 100) if used else None

    def _share_of(
        self,
        pod: Pod,
        percent_of: Callable[[Iterable[Who]], Sample | None],
        problems: dict[str, None],
    ) -> Sample | None:
        """Use of a Pod's vGPUs in percent of their limits."""
        sample = percent_of(shares_of(pod))
        if sample is None and pod.ready and (why := self._agents.problem(pod.node)):
            problems[why] = None
        return sample

    def _requests(self, workload: Workload, pod: Pod, problems: dict[str, None]) -> Sample | None:
        """Requests a second of one Pod, if each Pod has its own page."""
        if POD not in workload.qps_url or self._fault_of(workload):
            return None
        for page in pages_of(workload, [pod]):
            sample = self._pages.per_second(page)
            if sample is None and pod.ready and (why := self._pages.problem(page)):
                problems[why] = None
            return sample
        if pod.on_host:
            problems[f"qps of Pod {pod.name} is unknown: it is on its node's network"] = None
        return None

    def _fault_of(self, workload: Workload) -> str:
        return fault_of(workload, self._pages.reach, (QPS_URL, QPS_METRIC))

    def _totals(self, workload: Workload, scale: Scale) -> dict[Metric, Sample]:
        if scale.metrics.qps is None or self._fault_of(workload) or POD in workload.qps_url:
            return {}
        total = self._pages.per_second(pages_of(workload, ())[0])
        return {} if total is None else {"qps": total}


def _begin(scale: Scale, workload: Workload) -> _Target:
    """A new target, treated as if it had just changed, because earlier samples may still arrive."""
    settled_ns = scale.stabilization // SETTLE_PARTS
    return _Target(
        History(settled_ns=settled_ns), time.monotonic_ns(), scale, wanted=workload.replicas
    )
