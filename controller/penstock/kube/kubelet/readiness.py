"""Readiness: a Pod condition that reports suspended shares; resumes tenants of deleted Pods.

The condition is a readiness gate: while a tenant is suspended, by enforcement or on request, its
Pods get no traffic. The condition depends only on the agent's tenants, so it is correct again after
any restart. While the agent does not respond, conditions and suspended tenants stay as they are.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from penstock.kube.kubelet.node_pods import Condition
from penstock.kube.objects.api_client import PODS, ApiError
from penstock.kube.objects.names import RUNNING
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from penstock.kube.kubelet.allocation import Tenants
    from penstock.kube.kubelet.node_pods import NodePod, NodePods
    from penstock.kube.kubelet.pod_events import PodEvents
    from penstock.kube.objects.api_client import Api
    from penstock_api.v1 import agent_pb2 as pb

SOON_S = 0.2  # pause before a check, because many Pods change at once
LOOK_S = 5.0  # time between checks, in case an event was missed
AGAIN_S = 1.0  # pause before a retry
# A tenant is resumed only during this time after its Pod's deletion. Owners choose the grace period
# themselves, and a tenant that was suspended for good reason must not run on for hours.
MERCY_S = 60.0
MOST_AT_ONCE = 8  # concurrent writes
MOST_MESSAGE = 1000
RUNS = Condition("True", "VgpuRunning", "")
Log = Any  # log(event, **fields)


class Readiness:
    """Checks conditions when Pods change, when an event concerns a tenant, and periodically."""

    def __init__(
        self, api: Api, tenants: Tenants, pods: NodePods, happenings: PodEvents, log: Log
    ) -> None:
        self._api = api
        self._tenants = tenants
        self._pods = pods
        self._happenings = happenings
        self._log = log
        self._deleted_s: dict[str, float] = {}  # by uid: when its deletion was first seen
        self._changed = asyncio.Event()
        self.problem: PenstockError | None = None
        """Why conditions are not maintained at the moment."""
        pods.cache.changed.append(lambda *_: self._changed.set())
        happenings.changed.append(self._changed.set)

    async def run(self) -> None:
        """Checks until cancelled."""
        await self._pods.cache.ready()
        while True:
            self._changed.clear()
            wait_s = LOOK_S
            try:
                is_all_done = await self.look()
                self.problem = None
                if not is_all_done:
                    wait_s = AGAIN_S
            except PenstockError as error:
                self.problem = error
                await asyncio.sleep(AGAIN_S)
                continue
            try:
                await asyncio.wait_for(self._changed.wait(), wait_s)
            except asyncio.TimeoutError:
                continue
            await asyncio.sleep(SOON_S)

    async def look(self) -> bool:
        """Checks once; returns False if it should be called again soon.

        Raises:
            PenstockError: the agent does not respond, or a condition cannot be written.
        """
        living = [pod for pod in self._pods.cache.objects.values() if not pod.has_ended]
        if not any(pod.is_gated or pod.is_deleted for pod in living):
            return True
        now_s = time.monotonic()
        self._deleted_s = {
            pod.uid: self._deleted_s.get(pod.uid, now_s) for pod in living if pod.is_deleted
        }
        fresh = {uid for uid, since_s in self._deleted_s.items() if now_s - since_s < MERCY_S}
        tenants = (await self._tenants.owned()).values()
        by_pod: dict[str, list[pb.Tenant]] = defaultdict(list)
        resumed = False
        for tenant in tenants:
            pods = [pod for pod in self._pods.of(tenant) if not pod.has_ended]
            for pod in pods:
                by_pod[pod.uid].append(tenant)
            if tenant.suspended and has_to_end(pods, fresh):
                # A suspended process waits for the device, or is stopped. Resume it, so that its
                # SIGTERM handler runs before the grace period is over.
                await self._tenants.resume(tenant.name)
                self._log("resumed", tenant=tenant.name, why="its Pod is being deleted")
                resumed = True
        wanted = {
            pod: found
            for pod in living
            if pod.is_gated
            and (found := condition_of(pod, by_pod[pod.uid], self._why(by_pod[pod.uid])))
            and found != pod.condition
        }
        await self._write(wanted)
        return not resumed

    def _why(self, tenants: Iterable[pb.Tenant]) -> Mapping[str, tuple[str, str]]:
        return {
            one.name: self._happenings.why_suspended(one.name) for one in tenants if one.suspended
        }

    async def _write(self, wanted: Mapping[NodePod, Condition]) -> None:
        at_once = asyncio.Semaphore(MOST_AT_ONCE)

        async def one(pod: NodePod, condition: Condition) -> None:
            async with at_once:
                await self._say(pod, condition)

        answers = await asyncio.gather(
            *(one(pod, condition) for pod, condition in wanted.items()), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    async def _say(self, pod: NodePod, condition: Condition) -> None:
        """Writes the condition; does nothing if the Pod is gone or was created again."""
        said = {
            "type": RUNNING,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
        }
        if pod.condition is None or pod.condition.status != condition.status:
            now = datetime.now(timezone.utc)
            said["lastTransitionTime"] = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {"metadata": {"uid": pod.uid}, "status": {"conditions": [said]}}
        try:
            await self._api.patch(
                PODS, pod.name, body, pod.namespace, "status", way="strategic"
            )  # fmt: skip
        except ApiError as error:
            if error.status not in {404, 409}:
                raise


def has_to_end(pods: Sequence[NodePod], fresh: Collection[str]) -> bool:
    """Whether all Pods of a tenant are being deleted, so that resuming it helps no other Pod.

    `fresh` contains the uids of recently deleted Pods, and at least one Pod must be among them.
    """
    return all(pod.is_deleted for pod in pods) and any(pod.uid in fresh for pod in pods)


def condition_of(
    pod: NodePod, tenants: Sequence[pb.Tenant], why: Mapping[str, tuple[str, str]]
) -> Condition | None:
    """The Pod's new condition; None if it must not change.

    Args:
        pod: The Pod.
        tenants: Its current tenants.
        why: Reason and message for each suspended tenant, by name.
    """
    suspended = [one.name for one in tenants if one.suspended]
    if suspended:
        name = min(suspended)
        reason, message = why[name]
        whole = f"tenant {name} is suspended" + (f": {message}" if message else "")
        return Condition("False", reason, whole[:MOST_MESSAGE])
    # An init container's tenant ends before the next container starts, but the Pod still runs.
    return RUNS if tenants or pod.is_running else None
