"""Preemption: evicts Pods of a lower priority, and reserves the freed room for the waiting Pod.

The stock scheduler cannot count devices, so it evicts no Pod for them. Its filter requests name the
nodes where a Pod lacks only devices. This module chooses the victims and evicts them through the
Eviction API, which respects disruption budgets. The waiting Pod's status records each preemption.
So this process may be killed at any point, and the next one reserves the same room for the same
Pod.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.kube.extender.ledger import Kept, SeenPod
from penstock.kube.extender.nominations import (
    Waiting,
    was_refused,
    write_end,
    write_node_again,
    write_nomination,
    write_touch,
)
from penstock.kube.extender.preemption_forecast import (
    NEVER,
    SOON_S,
    Asker,
    Choice,
    ForecastInput,
    amounts,
    held_by,
    on_node,
    pods_named,
    room_after,
)
from penstock.kube.objects.api_client import PODS, ApiError
from penstock.kube.objects.disruption_budgets import all_budgets
from penstock.kube.objects.events import PLACE, About, Events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.kube.extender.ledger import Ledger
    from penstock.kube.objects.api_client import Api, Object
    from penstock.kube.objects.cache import Key
    from penstock.kube.objects.disruption_budgets import Budget
    from penstock.scheduling.placement.fit import Policy
    from penstock.scheduling.placement.pod_request import Request

# The scheduler may find victims by itself (for processors), and nominates a node within this time.
SETTLE_S = 0.5
UNSEEN_S = 10.0  # time for the API server to report that an evicted Pod is being deleted
HELD_S = 20.0  # pause before a refused eviction is requested again
FRUITLESS_S = 5.0  # pause before an equal request is examined again if no eviction helps
# No event informs the scheduler when a budget allows more evictions, or when the API server
# responds again. So its request is examined again until a new one arrives, which happens every five
# minutes.
AGAIN_S, STALE_S = 5.0, 330.0
KEPT_S = 60.0  # how long room is reserved beyond the victims' grace periods
REST_S, LONGEST_REST_S = 60.0, 1800.0  # pause for a Pod that did not use the room
# Number of nodes that are compared, beginning with the first one where evictions help, as in the
# scheduler's own preemption. Finding the best node of all would mean examining thousands.
LEAST_CANDIDATES, CANDIDATES_PERCENT = 100, 10
AT_A_TIME_S = 0.002  # longest work between two yields to requests of the scheduler
MOST_KEPT = 64  # Pods for which room is reserved at the same time
MOST_WISHES = 2000
MOST_ASKED_AGAIN = 500


@dataclass(frozen=True)
class _Wish:
    """A Pod that fits on none of the nodes that the scheduler offered."""

    pod: Key
    asker: Asker
    names: tuple[str, ...]
    asked_s: float  # monotonic

    @property
    def about(self) -> About:
        return About.pod(*self.pod, self.asker.uid)

    @property
    def kind(self) -> tuple[int, Request, int]:
        """A key that is equal for Pods whose requests have the same outcome."""
        return self.asker.priority, self.asker.request, hash(self.names)


class Preemption:
    """Preemption for the Pods of one scheduler. A cache of those Pods calls `pod_changed`."""

    def __init__(
        self,
        api: Api,
        ledger: Ledger,
        policy: Policy,
        report: Callable[..., None],
        count: Callable[[str], None],
    ) -> None:
        """Creates an idle instance. `count` is called with the outcome of each eviction."""
        self._api = api
        self._ledger = ledger
        self._policy: Policy = policy
        self._report = report
        self._count = count
        self._events = Events(api, report, PLACE)
        self._may: Callable[[], bool] = lambda: True
        self._wishes: dict[str, _Wish] = {}  # by uid
        self._wished = asyncio.Event()
        # All times are on the monotonic clock.
        self._again: dict[str, tuple[float, _Wish]] = {}  # by uid: when to examine the wish again
        self._waiting: dict[str, Waiting] = {}  # by uid
        self._unkept: set[str] = set()  # Pods nominated by an earlier process of this extender
        self._unnamed: set[str] = set()  # Pods whose nominatedNodeName the scheduler cleared
        self._placed: dict[str, Waiting] = {}
        self._until_s: dict[str, float] = {}  # by uid: end of the reservation
        self._rests: dict[str, tuple[float, float]] = {}  # by uid: end and length of the pause
        self._held_s: dict[str, float] = {}  # by uid of a refused eviction: end of the pause
        self._evicted_s: dict[str, float] = {}  # by uid: until when an evicted Pod counts as ending
        self._fruitless_s: dict[tuple[int, Request, int], float] = {}

    def pod_changed(
        self, _: Key, old: SeenPod | Waiting | None, new: SeenPod | Waiting | None
    ) -> None:
        """Handles a Pod that was nominated or placed, or that is gone."""
        if isinstance(old, Waiting) and not (isinstance(new, Waiting) and new.uid == old.uid):
            self._waiting.pop(old.uid, None)
            self._unkept.discard(old.uid)
            self._until_s.pop(old.uid, None)
            self._ledger.keep_no_longer(old.uid)
            if isinstance(new, SeenPod) and old.node:
                self._placed[old.uid] = old
                self._wished.set()
        if isinstance(new, Waiting):
            self._waiting[new.uid] = new
            if new.node and new.uid not in self._ledger.kept:
                self._unkept.add(new.uid)
            elif new.node and not new.nominated:
                self._unnamed.add(new.uid)
                self._wished.set()

    def restore(self) -> None:
        """Reserves the room that an earlier process was freeing.

        Call this before requests for other Pods are served.
        """
        while self._unkept:
            waiting = self._waiting.get(self._unkept.pop())
            if waiting is None:
                continue
            asker = Asker(waiting.uid, waiting.priority, waiting.request)
            around = ForecastInput(now_s=self._api.now_s(), heeded=False, soon_s=math.inf)
            choice = on_node(self._ledger, waiting.node, asker, around)
            if choice is None or not self._keep(asker, waiting.pod, choice, math.inf):
                self._until_s[waiting.uid] = time.monotonic()  # no eviction there would help

    def wanted(self, pod: Object, request: Request, names: tuple[str, ...]) -> None:
        """Records that the Pod fits on none of these nodes, where it lacks only devices."""
        spec, metadata = pod.get("spec") or {}, pod["metadata"]
        priority = spec.get("priority") or 0
        lowest = self._ledger.lowest_priority
        if (
            not names
            or lowest is None
            or priority <= lowest
            or spec.get("preemptionPolicy") == NEVER
            or len(self._wishes) >= MOST_WISHES
        ):
            return
        uid = metadata["uid"]
        now_s = time.monotonic()
        wish = _Wish(
            (metadata.get("namespace", ""), metadata["name"]),
            Asker(uid, priority, request),
            names,
            now_s,
        )
        if now_s < self._rests.get(uid, (0.0, 0.0))[0] or now_s < self._fruitless_s.get(
            wish.kind, 0.0
        ):
            return
        self._again.pop(uid, None)
        self._wishes[uid] = wish
        self._wished.set()

    async def run(self, scheduler: str, may: Callable[[], bool]) -> None:
        """Serves waiting Pods of the profile `scheduler` until cancelled, whenever `may()`."""
        self._may = may
        while not may():
            await asyncio.sleep(SETTLE_S)
        while True:
            try:
                await self._have_asked_again(scheduler)
                break
            except ApiError as error:
                self._report("preemption-interrupted", why=str(error))
                await asyncio.sleep(AGAIN_S)
        while True:
            try:
                await asyncio.wait_for(self._wished.wait(), SETTLE_S)
            except asyncio.TimeoutError:
                pass
            else:
                await asyncio.sleep(SETTLE_S)
            self._wished.clear()
            if not may():  # the leader updates Pods that were placed or lost their nomination
                self._placed.clear()
                self._unnamed.clear()
                continue
            try:
                await self._round()
            except ApiError as error:
                self._report("preemption-interrupted", why=str(error))

    async def _have_asked_again(self, scheduler: str) -> None:
        """Touches waiting Pods, so that the scheduler tries them again after a restart.

        The scheduler's requests to an earlier process are lost, and it may back off for minutes.
        But it tries a Pod again whenever the Pod changes.
        """
        lowest = self._ledger.lowest_priority
        unplaced = f"spec.schedulerName={scheduler},spec.nodeName="
        found, _ = await self._api.list(PODS, fields=unplaced)
        waiting = [
            one
            for one in found
            if lowest is not None
            and (one["spec"].get("priority") or 0) > lowest
            and one["spec"].get("preemptionPolicy") != NEVER
            and was_refused(one)
        ]
        waiting.sort(key=lambda one: -one["spec"]["priority"])
        for one in waiting[:MOST_ASKED_AGAIN]:
            metadata = one["metadata"]
            await self._patch((metadata["namespace"], metadata["name"]), write_touch(one))

    async def _round(self) -> None:
        now_s = time.monotonic()
        self._held_s = {uid: end_s for uid, end_s in self._held_s.items() if end_s > now_s}
        self._evicted_s = {uid: end_s for uid, end_s in self._evicted_s.items() if end_s > now_s}
        self._rests = {
            uid: rest for uid, rest in self._rests.items() if rest[0] > now_s - LONGEST_REST_S
        }
        self._fruitless_s = {
            kind: end_s for kind, end_s in self._fruitless_s.items() if end_s > now_s
        }
        await self._write_again()
        for uid in [uid for uid, until_s in self._until_s.items() if until_s < now_s]:
            await self._give_up(uid)
        wishes = self._due(now_s)
        if not wishes:
            return
        for wish in wishes:
            self._look_again(wish)  # in case this loop is interrupted
        budgets = await all_budgets(self._api)
        for wish in wishes:
            if not self._may():
                return
            if wish.kind in self._fruitless_s:
                continue
            self._again.pop(wish.asker.uid, None)
            began_s = time.monotonic()
            try:
                await self._serve(wish, budgets)
            except ApiError:
                self._look_again(wish)
                raise
            await asyncio.sleep(time.monotonic() - began_s)  # requests of the scheduler go first

    def _due(self, now_s: float) -> list[_Wish]:
        """The requests to serve now, highest priority first."""
        wishes, self._wishes = self._wishes, {}
        for uid in [uid for uid, (at_s, _) in self._again.items() if at_s < now_s]:
            wishes.setdefault(uid, self._again.pop(uid)[1])
        fresh = (one for one in wishes.values() if now_s - one.asked_s < STALE_S)
        return sorted(fresh, key=lambda one: -one.asker.priority)

    def _look_again(self, wish: _Wish) -> None:
        self._again[wish.asker.uid] = time.monotonic() + AGAIN_S, wish

    async def _serve(self, wish: _Wish, budgets: Sequence[Budget]) -> None:
        uid = wish.asker.uid
        waiting = self._waiting.get(uid)
        if waiting and waiting.nominated and waiting.nominated != waiting.node:
            return  # the scheduler makes room for it
        around = ForecastInput(budgets, self._held_s, self._api.now_s(), self._evicted_s)
        kept = self._ledger.kept.get(uid)
        if kept:
            # Wait for Pods that were evicted for this Pod, however long they take.
            patient = replace(around, soon_s=math.inf)
            there = on_node(self._ledger, kept.node, wish.asker, patient)
            if there and not there.holders:
                return  # the victims are not gone, or the scheduler has not tried the Pod since
            self._ledger.keep_no_longer(uid)
        elif len(self._ledger.kept) >= MOST_KEPT:
            self._look_again(wish)
            return
        best = await self._best(wish, around)
        if best is None:
            await self._tell_why_not(wish, around)
            if uid in self._until_s:
                await self._give_up(uid)
            return
        if not best.holders:  # Pods that are being deleted anyway leave enough room
            if uid in self._until_s:
                self._keep(wish.asker, wish.pod, best)
            return
        await self._make_room(wish, best, budgets)

    async def _best(self, wish: _Wish, around: ForecastInput) -> Choice | None:
        """Finds the best choice, and checks it again, as other requests may run in between."""
        best = None
        kept = self._waiting.get(wish.asker.uid)
        first = kept.node if kept else ""  # the node where Pods were already evicted for it
        left = max(LEAST_CANDIDATES, len(wish.names) * CANDIDATES_PERCENT // 100)
        began_s = time.monotonic()
        for name in _from_anywhere(wish.names, first):
            if time.monotonic() - began_s > AT_A_TIME_S:
                await asyncio.sleep(0)
                began_s = time.monotonic()
            found = on_node(self._ledger, name, wish.asker, around, best)
            best = found or best
            if best is None:
                continue
            left -= 1
            if not best.holders or left == 0:
                break
        return best and on_node(self._ledger, best.node, wish.asker, around)

    async def _make_room(self, wish: _Wish, choice: Choice, budgets: Sequence[Budget]) -> None:
        """Reserves the room, nominates the node, and evicts the victims."""
        # There must be no await between the choice of the victims and the reservation.
        uid, (namespace, name) = wish.asker.uid, wish.pod
        if self._ledger.has(uid) or not self._keep(wish.asker, wish.pod, choice):
            return
        named = pods_named(choice.victims)
        try:
            body = write_nomination(uid, choice.node, named)
            await self._api.patch(PODS, name, body, namespace, "status", way="strategic")
        except ApiError as error:
            self._forget(uid)
            if error.status in {404, 409}:  # the Pod is gone
                return
            raise
        self._report("preempting", pod=f"{namespace}/{name}", node=choice.node, victims=named)
        guarded = {one.uid for one in choice.holders if one.budgets}
        # Victims with budgets come first. If one of them were refused last, the evictions before
        # it would have been useless.
        for victim in sorted(choice.victims, key=lambda one: one.uid not in guarded):
            if not self._may():
                self._forget(uid)
                return
            if not await self._evict(victim, wish, choice.node):
                self._held_s[victim.uid] = time.monotonic() + HELD_S
                self._ledger.keep_no_longer(uid)
                self._wishes[uid] = wish
                self._wished.set()
                text = held_by(Choice(choice.node, (), (victim,)), budgets)
                await self._events.write(wish.about, "PreemptionHeld", text, warning=True)
                return
        text = (
            f"{named} evicted on {choice.node} for its {amounts(wish.asker.request)}: waits until "
            "their containers are gone"
        )
        await self._events.write(wish.about, "Preempting", text)

    async def _evict(self, victim: SeenPod, wish: _Wish, node: str) -> bool:
        """Evicts a Pod; returns whether this was allowed. Raises `ApiError` if that is unknown."""
        namespace, name = victim.pod
        body: Object = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": victim.uid}},
        }
        try:
            await self._api.create(PODS, body, namespace, name, "eviction")
        except ApiError as error:
            if error.status in {404, 409}:  # the Pod is gone, or another one has its name
                return True
            # The API server always responds with 500 if several budgets cover one Pod.
            if error.status == 429 or (error.status == 500 and "PodDisruptionBudget" in error.why):
                self._count("refused")
                return False
            raise
        self._count("evicted")
        self._evicted_s[victim.uid] = time.monotonic() + UNSEEN_S
        text = (
            f"evicted for Pod {wish.pod[0]}/{wish.pod[1]} of priority {wish.asker.priority}, which "
            f"needs {amounts(wish.asker.request)} on {node}"
        )
        await self._events.write(
            About.pod(namespace, name, victim.uid), "Preempted", text, warning=True
        )
        return True

    async def _tell_why_not(self, wish: _Wish, around: ForecastInput) -> None:
        self._fruitless_s[wish.kind] = time.monotonic() + FRUITLESS_S
        if not around.budgets and not around.held:
            return
        unheld = replace(around, held=(), heeded=False)
        if choice := await self._best(wish, unheld):
            self._look_again(wish)
            text = held_by(choice, around.budgets) + ": the eviction is retried"
            await self._events.write(wish.about, "PreemptionHeld", text, warning=True)

    def _keep(self, asker: Asker, pod: Key, choice: Choice, soon_s: float = SOON_S) -> bool:
        now_s = self._api.now_s()
        around = ForecastInput(now_s=now_s, evicted=self._evicted_s, soon_s=soon_s)
        shares = room_after(self._ledger, choice, asker, around, self._policy)
        if shares is None:
            return False
        self._ledger.keep(asker.uid, Kept(pod, choice.node, asker.priority, shares))
        going = [one.ends_s - now_s for one in self._ledger.holders(choice.node) if one.ends_s]
        takes_s = max([0.0, *going, *(one.grace_s for one in choice.victims)])
        self._until_s[asker.uid] = time.monotonic() + takes_s + KEPT_S
        return True

    def _forget(self, uid: str) -> None:
        self._ledger.keep_no_longer(uid)
        self._until_s.pop(uid, None)

    async def _give_up(self, uid: str) -> None:
        """Ends the reservation. The Pod may preempt again after a pause that grows each time."""
        kept, waiting = self._ledger.kept.get(uid), self._waiting.get(uid)
        if waiting is None or not waiting.node:
            self._forget(uid)
            return
        why = f"room on {waiting.node} is no longer reserved: " + (
            "the scheduler did not place the Pod there in time"
            if kept
            else "no Pod whose eviction would help can be evicted"
        )
        await self._patch(waiting.pod, write_end(uid, why))
        self._forget(uid)
        if kept:
            rest_s = min(LONGEST_REST_S, 2 * self._rests.get(uid, (0.0, REST_S / 2))[1])
            self._rests[uid] = time.monotonic() + rest_s, rest_s
        about = About.pod(*waiting.pod, uid)
        await self._events.write(about, "PreemptionGivenUp", why, warning=True)

    async def _write_again(self) -> None:
        placed, self._placed = self._placed, {}
        for uid, waiting in placed.items():
            await self._patch(
                waiting.pod, write_end(uid, f"it was placed, {waiting.node} made room")
            )
        unnamed, self._unnamed = self._unnamed, set()
        for uid in unnamed:
            kept, found = self._ledger.kept.get(uid), self._waiting.get(uid)
            if kept and found and not found.nominated:
                await self._patch(found.pod, write_node_again(uid, kept.node))

    async def _patch(self, pod: Key, body: Object) -> None:
        namespace, name = pod
        try:
            await self._api.patch(PODS, name, body, namespace, "status", way="strategic")
        except ApiError as error:
            if error.status not in {404, 409}:
                raise


def _from_anywhere(names: tuple[str, ...], first: str) -> Iterator[str]:
    """Yields `first`, then the other names from a random start, so that no node is favoured."""
    if first in names:
        yield first
    begin = random.randrange(len(names))  # noqa: S311 - no secret
    yield from (name for name in names[begin:] + names[:begin] if name != first)
