"""Events that explain why Pods wait for vGPUs through claims, a limited number in each round."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.kube.controller.cluster_snapshot import devices_of, usual_of
from penstock.kube.controller.explain import ClusterSnapshot, explain
from penstock.kube.objects.events import About

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.kube.controller.cluster_snapshot import Claim, Node, Slice
    from penstock.kube.controller.leader_election import Leader
    from penstock.kube.controller.pod_index import Pods
    from penstock.kube.objects.api_client import Api
    from penstock.kube.objects.events import Events
    from penstock.kube.objects.workloads import Pod

REASON = "WhyPending"
AFTER_S = 5.0  # most Pods are placed by then
AGAIN_S = 30.0
MOST_A_ROUND = 20  # each explanation takes some milliseconds on a large cluster


class Pending:
    """The waiting Pods, and when each got an Event."""

    def __init__(self, api: Api, leader: Leader, events: Events) -> None:
        self._api = api
        self._leader = leader
        self._events = events
        self._since_s: dict[str, float] = {}
        self._told_s: dict[str, float] = {}

    async def round(
        self,
        pods: Pods,
        nodes: Iterable[Node],
        slices: Iterable[Slice],
        claims: Mapping[tuple[str, str], Claim],
        classes: Mapping[str, bool],
    ) -> None:
        """Explains the Pods that have waited longest for an Event. Raises `NotLeadingError`."""
        now_s = time.monotonic()
        waiting = [pod for pod in pods.unplaced.values() if pod.claims and not pod.deleting]
        uids = {pod.uid for pod in waiting}
        self._since_s = {uid: self._since_s.get(uid, now_s) for uid in uids}
        self._told_s = {uid: at for uid, at in self._told_s.items() if uid in uids}
        due = [
            pod
            for pod in waiting
            if now_s - self._since_s[pod.uid] >= AFTER_S
            and now_s - self._told_s.get(pod.uid, -AGAIN_S) >= AGAIN_S
        ]
        if not due:
            return
        due.sort(key=lambda pod: self._told_s.get(pod.uid, 0.0))
        slices = list(slices)
        world = ClusterSnapshot(
            {node.name: node for node in nodes},
            devices_of(slices, claims.values()),
            claims,
            classes,
            [name for name, ours in classes.items() if ours],
            taken_by_node(pod for by in pods.by_namespace.values() for pod in by.values()),
            usual=usual_of(slices),
        )
        for pod in due[:MOST_A_ROUND]:
            self._told_s[pod.uid] = now_s
            why = explain(pod, world)
            if not why.causes:
                continue
            self._leader.check()
            about = About("v1", "Pod", pod.namespace, pod.name, pod.uid)
            await self._events.write(about, REASON, str(why), warning=True)


def taken_by_node(pods: Iterable[Pod]) -> dict[str, tuple[float, float, int]]:
    """By node: the processors and bytes of memory that its Pods request, and their number."""
    taken: dict[str, tuple[float, float, int]] = {}
    for pod in pods:
        if pod.node:
            cpu, memory_bytes, count = taken.get(pod.node, (0.0, 0.0, 0))
            taken[pod.node] = cpu + pod.cpu_taken, memory_bytes + pod.memory_taken_bytes, count + 1
    return taken
