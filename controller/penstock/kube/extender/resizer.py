"""Resizer: changes placements of running Pods on request; reserves first, then writes.

An update must match the resourceVersion on which the decision was based. So the next version of the
Pod either contains the change or rules it out. A killed process leaves nothing to clean up, because
the Pod's object shows the shares that it holds, both before and after the change.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.kube.extender.growth import Step, step_of
from penstock.kube.extender.ledger import SeenPod
from penstock.kube.objects.api_client import PODS, ApiError
from penstock.kube.objects.events import PLACE, About, Events
from penstock.kube.objects.names import HELD, PLACED
from penstock.kube.objects.placement import write_placement
from penstock.kube.objects.resize_annotation import in_words
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kube.extender.ledger import Ledger
    from penstock.kube.extender.nominations import Waiting
    from penstock.kube.objects.api_client import Api, Object
    from penstock.kube.objects.cache import Cache, Key

GROWN, SHRUNK, REFUSED = "VgpuGrown", "VgpuShrunk", "VgpuResizeRefused"
LOOK_S = 1.0  # time between checks of Pods that wait for room
AGAIN_S = 10.0  # pause after the API server refused a change
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
SAY_AGAIN_S = 30.0  # limits the rate of Events, because free shares change all the time


@dataclass
class _Written:
    """A change that has not been seen yet."""

    key: Key
    version: str  # resourceVersion of the Pod that the update must match
    task: asyncio.Task[None]


class Resizer:
    """Resizes Pods when they change; `pods` caches the Pods whose shares `ledger` counts."""

    def __init__(
        self,
        api: Api,
        ledger: Ledger,
        pods: Cache[SeenPod | Waiting],
        *,
        report: Callable[..., None],
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """Subscribes to `pods`. The ledger must already be subscribed, to see changes first."""
        self._api = api
        self._ledger = ledger
        self._pods = pods
        self._report = report
        self._leads = leads
        self._events = Events(api, report, PLACE)
        self._open: set[Key] = set()
        self._written: dict[str, _Written] = {}  # by uid
        self._refused: dict[str, tuple[str, str, float]] = {}  # by uid: request, refusal, time
        self._not_before_s: dict[str, float] = {}
        self._wake = asyncio.Event()
        pods.changed.append(self._note)

    async def run(self) -> None:
        """Resizes Pods until cancelled."""
        await self._pods.ready()
        while True:
            self._wake.clear()
            self._settle()
            if self._leads():
                for key in list(self._open):
                    await self._look(key)
            wait_s = LOOK_S if self._open or self._written else None
            try:
                await asyncio.wait_for(self._wake.wait(), wait_s)
            except asyncio.TimeoutError:
                continue

    def _note(self, key: Key, old: SeenPod | Waiting | None, new: SeenPod | Waiting | None) -> None:
        if isinstance(new, SeenPod) and new.running is not None and new.running.asked:
            self._open.add(key)
        else:
            self._open.discard(key)
        if old is not None and (new is None or new.uid != old.uid):
            self._refused.pop(old.uid, None)
            self._not_before_s.pop(old.uid, None)
        self._wake.set()

    def _settle(self) -> None:
        """Ends changes whose Pod has a new version, which contains the change or rules it out."""
        for uid, one in list(self._written.items()):
            pod = self._placed(one.key)
            gone = pod is None or pod.uid != uid or pod.running is None
            if gone or (pod and pod.running and pod.running.version != one.version):
                self._ledger.release_growth(uid)
                del self._written[uid]

    def _placed(self, key: Key) -> SeenPod | None:
        pod = self._pods.objects.get(key)
        return pod if isinstance(pod, SeenPod) else None

    async def _look(self, key: Key) -> None:
        pod = self._placed(key)
        if pod is None or pod.running is None or not pod.running.asked:
            self._open.discard(key)
            return
        now_s = time.monotonic()
        if pod.uid in self._written or now_s < self._not_before_s.get(pod.uid, 0.0):
            return
        if problem := self._ledger.problem(pod.node):
            await self._refuse(key, pod, f"node {pod.node} cannot allocate more: {problem}")
            return
        try:
            step = step_of(pod, self._ledger.nodes[pod.node])
        except PenstockError as error:
            await self._refuse(key, pod, str(error))
            return
        self._refused.pop(pod.uid, None)
        if step is None:
            self._open.discard(key)
            return
        # There must be no await between the check for free shares and their reservation.
        self._ledger.grow(pod.uid, pod.node, step.more)
        task = asyncio.create_task(self._write(key, pod, step))
        self._written[pod.uid] = _Written(key, pod.running.version, task)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _write(self, key: Key, pod: SeenPod, step: Step) -> None:
        running = pod.running
        assert running is not None  # noqa: S101 - for the type checker
        held = write_placement(step.held) if step.held else None
        body: Object = {
            "metadata": {
                "uid": pod.uid,
                "resourceVersion": running.version,
                "annotations": {PLACED: write_placement(step.placement), HELD: held},
            }
        }
        # The patch goes to `status`, because a scheduler may not write the spec of Pods.
        wait_s, in_doubt = FIRST_WAIT_S, False
        while True:
            try:
                await self._api.patch(PODS, key[1], body, key[0], "status")
                break
            except ApiError as error:
                # The version to match is gone, so no attempt can succeed any more. If an earlier
                # attempt did succeed, the Pod will be seen with the change.
                if error.status in {404, 409}:
                    if not in_doubt:
                        self._give_up(pod.uid, running.version)
                    return
                if not error.is_passing and not in_doubt:
                    self._not_before_s[pod.uid] = time.monotonic() + AGAIN_S
                    self._give_up(pod.uid, running.version)
                    self._report("not resized", pod="/".join(key), why=str(error))
                    return
                in_doubt = True
            await asyncio.sleep(wait_s)
            wait_s = min(LONGEST_WAIT_S, 2 * wait_s)
            if not self._leads():  # a new leader may have allocated the room to other Pods
                self._give_up(pod.uid, running.version)
                return
        grown = any(
            share.memory_bytes > before.memory_bytes or share.cores_permille > before.cores_permille
            for container, shares in step.placement.items()
            for uuid, share in shares.items()
            for before in [running.placement[container][uuid]]
        )
        text = in_words(running.placement, step.placement)
        self._report("resized", pod="/".join(key), what=text)
        await self._tell(key, pod, GROWN if grown else SHRUNK, text)

    def _give_up(self, uid: str, version: str) -> None:
        """Drops the change, unless a change to a newer version of the Pod has begun since."""
        if uid in self._written and self._written[uid].version == version:
            self._ledger.release_growth(uid)
            del self._written[uid]
        self._wake.set()

    async def _refuse(self, key: Key, pod: SeenPod, text: str) -> None:
        asked = pod.running.asked if pod.running else ""
        was_asked, told, at_s = self._refused.get(pod.uid, ("", "", 0.0))
        now_s = time.monotonic()
        if was_asked == asked and (told == text or now_s - at_s < SAY_AGAIN_S):
            return
        self._refused[pod.uid] = asked, text, now_s
        await self._tell(key, pod, REFUSED, text)

    async def _tell(self, key: Key, pod: SeenPod, reason: str, text: str) -> None:
        about = About.pod(key[0], key[1], pod.uid)
        await self._events.write(about, reason, text, warning=reason == REFUSED, again=True)
