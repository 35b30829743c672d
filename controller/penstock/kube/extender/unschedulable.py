"""Unschedulable Pods: makes the scheduler retry a Pod when there is room for its shares.

The scheduler retries a Pod after changes such as a deleted Pod or a node with another device. If it
sees a change before this process does, the response is once more that nothing fits, and the
scheduler lets the Pod rest for five minutes. So this module checks refused Pods again when shares
become free. If a Pod now fits and the scheduler has sent no new request, a change of the Pod's
status makes the scheduler retry it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.kube.extender.nominations import write_room_came
from penstock.kube.objects.api_client import PODS, ApiError
from penstock.scheduling.placement.fit import fits, place
from penstock.scheduling.placement.pod_request import totals
from penstock.scheduling.placement.reasons import Shortage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from penstock.kube.extender.ledger import Ledger
    from penstock.kube.extender.preemption_forecast import Asker
    from penstock.kube.objects.api_client import Api
    from penstock.kube.objects.cache import Key

LOOK_S = 1.0  # also the time in which the scheduler may retry a Pod by itself
# Pause after a change of the status that did not get the Pod placed. Something other than devices
# prevents that, but this may change.
FIRST_REST_S, LONGEST_REST_S = 10.0, 300.0
# The scheduler retries every waiting Pod each five minutes, so a Pod without a request for this
# long is gone.
STALE_S = 660.0
MOST = 20_000


@dataclass
class _Refused:
    pod: Key
    asker: Asker
    told_s: float  # monotonic time of the response to the scheduler
    rest_s: float = FIRST_REST_S
    not_before_s: float = 0.0  # monotonic


class Refused:
    """The refused Pods of one scheduler."""

    def __init__(self, api: Api, ledger: Ledger, report: Callable[..., None]) -> None:
        self._api = api
        self._ledger = ledger
        self._report = report
        self._by_uid: dict[str, _Refused] = {}
        self._settling: Collection[str] = ()  # nodes on which shares became free

    def told(self, pod: Key, asker: Asker) -> None:
        """Records a response to the scheduler that a Pod fits nowhere."""
        now_s = time.monotonic()
        if one := self._by_uid.get(asker.uid):
            one.asker, one.told_s = asker, now_s
        elif len(self._by_uid) < MOST:
            self._by_uid[asker.uid] = _Refused(pod, asker, now_s)

    def forget(self, uid: str) -> None:
        """Drops a Pod that fits or is placed."""
        self._by_uid.pop(uid, None)

    async def run(self, may: Callable[[], bool]) -> None:
        """Checks refused Pods until cancelled, whenever `may()`."""
        while True:
            await asyncio.sleep(LOOK_S)
            nodes, self._settling = self._settling, self._ledger.take_freed()
            if nodes and may():
                await self._look(nodes)

    async def _look(self, nodes: Collection[str]) -> None:
        """Touches the Pods that now fit on these nodes, for which each room counts only once."""
        now_s = time.monotonic()
        for uid in [uid for uid, one in self._by_uid.items() if now_s - one.told_s > STALE_S]:
            del self._by_uid[uid]
        ledger = self._ledger
        room = {name: ledger.nodes[name].copy() for name in nodes if not ledger.problem(name)}
        if not room:
            return
        waiting = [
            one
            for uid, one in self._by_uid.items()
            if one.told_s < now_s - LOOK_S
            and one.not_before_s < now_s
            and uid not in ledger.kept  # preemption already makes room for these Pods
        ]
        waiting.sort(key=lambda one: -one.asker.priority)
        in_vain = set()  # requests that fit nowhere; equal requests get the same result
        for one in waiting:
            request = one.asker.request
            if request in in_vain:
                continue
            await asyncio.sleep(0)  # requests of the scheduler go first
            name = next((name for name, node in room.items() if fits(node, request)), "")
            if not name:
                in_vain.add(request)
                continue
            placement = place(room[name], request, "binpack")
            if isinstance(placement, Shortage):  # contradicts fits() only for many containers
                continue
            if one.asker.uid in self._by_uid and await self._is_touched(one, name):
                order = [(ask.container, ask.role) for ask in request.asks]
                room[name].take(totals(placement, order))

    async def _is_touched(self, one: _Refused, node: str) -> bool:
        """Changes the Pod's status; returns False if the Pod is gone, which no watch shows."""
        uid, (namespace, name) = one.asker.uid, one.pod
        one.not_before_s = time.monotonic() + one.rest_s
        one.rest_s = min(LONGEST_REST_S, 2 * one.rest_s)
        body = write_room_came(uid, node)
        try:
            await self._api.patch(PODS, name, body, namespace, "status", way="strategic")
        except ApiError as error:
            if error.status in {404, 409}:  # the Pod is gone, or another one has its name
                self.forget(uid)
                return False
            # The scheduler retries the Pod by itself within minutes.
            self._report("not told of room", pod=f"{namespace}/{name}", why=str(error))
        return True
