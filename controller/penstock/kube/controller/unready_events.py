"""Events for Pods that stay unready because no agent on their node reports that their share runs.

The node maintains the condition `penstock.io/running`. If no process of ours works there, a Pod
stays unready without an explanation, so the controller writes one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.kube.objects.events import About
from penstock.kube.objects.names import RUNNING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from penstock.kube.controller.leader_election import Leader
    from penstock.kube.objects.events import Events
    from penstock.kube.objects.workloads import Pod

REASON = "VgpuStateUnknown"
AFTER_S = 30.0  # a process that only restarts reports within seconds
AGAIN_S = 600.0  # API servers forget events after an hour
MOST_A_ROUND = 20


class Unready:
    """The Pods that are unready, since when, and when each last got an Event."""

    def __init__(self, leader: Leader, events: Events) -> None:
        self._leader = leader
        self._events = events
        self._since_s: dict[str, float] = {}
        self._told_s: dict[str, float] = {}

    async def round(self, pods: Iterable[Pod], served: Collection[str]) -> None:
        """Writes due Events; `served` has the nodes with agents. Raises `NotLeadingError`."""
        now_s = time.monotonic()
        concerned = {pod.uid: (pod, why) for pod in pods if (why := why_unsaid(pod, served))}
        self._since_s = {uid: self._since_s.get(uid, now_s) for uid in concerned}
        self._told_s = {uid: at for uid, at in self._told_s.items() if uid in concerned}
        due = [
            uid
            for uid, since_s in self._since_s.items()
            if now_s - since_s >= AFTER_S and now_s - self._told_s.get(uid, -AGAIN_S) >= AGAIN_S
        ]
        for uid in due[:MOST_A_ROUND]:
            pod, why = concerned[uid]
            self._told_s[uid] = now_s
            self._leader.check()
            about = About("v1", "Pod", pod.namespace, pod.name, uid)
            await self._events.write(about, REASON, why, warning=True, again=True)


def why_unsaid(pod: Pod, served: Collection[str]) -> str:
    """Why a Pod is unready without a report of its node; empty if it is ready, or reported."""
    if pod.deleting or not pod.node:
        return ""
    see = f"see the agent's Pod on node {pod.node}, both of its containers"
    if pod.unsaid:
        return (
            f"its containers are ready, but no agent on node {pod.node} reports that its share "
            f"runs (condition {RUNNING}): {see}"
        )
    if pod.suspended and pod.node not in served:
        return (
            f"node {pod.node} has no agent that is ready; its last report: {pod.suspended}. The "
            f"current state is unknown: {see}"
        )
    return ""
