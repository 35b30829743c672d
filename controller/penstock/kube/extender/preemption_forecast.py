"""Preemption forecast: pure functions that predict from the ledger whether evictions would help."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from penstock.kube.objects.disruption_budgets import budgets_of
from penstock.model import format_cores, human_memory
from penstock.scheduling.placement.fit import fits, place
from penstock.scheduling.placement.pod_request import totals
from penstock.scheduling.placement.preempt import Holder, choose, rank
from penstock.scheduling.placement.reasons import Shortage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from penstock.kube.extender.ledger import Ledger, SeenPod
    from penstock.kube.objects.disruption_budgets import Budget
    from penstock.model.share import Share
    from penstock.scheduling.placement.device_state import Node as Devices
    from penstock.scheduling.placement.fit import Policy
    from penstock.scheduling.placement.pod_request import Request

NEVER = "Never"  # value of a Pod's preemptionPolicy
# A Pod that is being deleted counts as gone if its deadline is near. If its end may take an hour,
# or is overdue, other Pods are evicted instead of waiting for it.
SOON_S, LATE_S = 90.0, 60.0


@dataclass(frozen=True)
class Asker:
    """A Pod that waits for devices."""

    uid: str
    priority: int
    request: Request


@dataclass(frozen=True)
class Choice:
    """A node where room can be made, and the victims.

    There are no victims if the Pods that are being deleted make enough room.
    """

    node: str
    holders: tuple[Holder, ...]
    victims: tuple[SeenPod, ...]


@dataclass(frozen=True)
class ForecastInput:
    """The facts that a forecast needs in addition to the ledger."""

    budgets: Sequence[Budget] = ()
    held: Collection[str] = ()  # uids of Pods whose eviction was refused recently
    now_s: float = 0.0  # since 1970 (UTC) on the API server's clock, as `ends_s` of Pods
    evicted: Collection[str] = ()  # uids of evicted Pods, whose objects may not show it yet
    heeded: bool = True  # whether budgets are respected
    soon_s: float = SOON_S  # longest wait for Pods that are being deleted

    def is_going(self, one: SeenPod) -> bool:
        """Whether a Pod's shares will become free without a further eviction."""
        if one.ends_s is None:
            return one.uid in self.evicted
        return -LATE_S < one.ends_s - self.now_s < self.soon_s

    @cached_property
    def allowed(self) -> Mapping[str, int]:
        """The number of Pods that may be evicted, by key of a budget."""
        return {one.key: one.allowed for one in self.budgets}

    @cached_property
    def _by_namespace(self) -> Mapping[str, list[Budget]]:
        found = defaultdict(list)
        for one in self.budgets:
            found[one.namespace].append(one)
        return found

    def budgets_of(self, pod: SeenPod) -> tuple[str, ...]:
        """The keys of the budgets that cover the Pod."""
        if not pod.runs or not self.heeded or pod.pod[0] not in self._by_namespace:
            return ()
        return budgets_of(pod.pod[0], pod.labels, self._by_namespace[pod.pod[0]])


def on_node(
    ledger: Ledger, name: str, asker: Asker, around: ForecastInput, best: Choice | None = None
) -> Choice | None:
    """The choice on one node; None if there is none, or it is not better than `best`."""
    if ledger.problem(name):
        return None
    seen = {one.uid: one for one in ledger.holders(name)}
    going = [one for one in seen.values() if around.is_going(one)]
    staying = [
        one
        for one in seen.values()
        if one.ends_s is None and one.uid not in around.held and one.uid not in around.evicted
    ]
    holders = (
        Holder(one.uid, one.priority, one.since_s, one.shares, around.budgets_of(one))
        for one in staying
        if one.priority < asker.priority
    )
    with _without(ledger, name, asker, going) as node:
        victims = choose(
            node,
            asker.request,
            asker.priority,
            holders,
            allowed=around.allowed,
            best=None if best is None else best.holders,
        )
    if victims is None or (best is not None and rank(victims) >= rank(best.holders)):
        return None
    return Choice(name, victims, tuple(seen[one.uid] for one in victims))


def room_after(
    ledger: Ledger, choice: Choice, asker: Asker, around: ForecastInput, policy: Policy
) -> Mapping[str, Share] | None:
    """The shares, by device UUID, that the Pod will get once all victims are gone."""
    going = [one for one in ledger.holders(choice.node) if around.is_going(one)]
    with _without(ledger, choice.node, asker, [*going, *choice.victims]) as node:
        placement = place(node, asker.request, policy)
    if isinstance(placement, Shortage):
        return None
    return totals(placement, [(ask.container, ask.role) for ask in asker.request.asks])


@contextmanager
def _without(ledger: Ledger, name: str, asker: Asker, pods: Iterable[SeenPod]) -> Iterator[Devices]:
    """Within the block, the node is in the state that the asker would find without `pods`."""
    node, gone = ledger.nodes[name], list(pods)
    with ledger.seen_by(asker.uid, asker.priority):
        for one in gone:
            node.give_back(one.shares)
        try:
            yield node
        finally:
            for one in gone:
                node.take(one.shares)


def is_enough(ledger: Ledger, name: str, asker: Asker, uids: Collection[str]) -> bool:
    """Whether the asker fits on a node once the Pods with these uids are gone."""
    if ledger.problem(name):
        return False
    pods = [one for one in ledger.holders(name) if one.uid in uids]
    with _without(ledger, name, asker, pods) as node:
        return fits(node, asker.request)


def best_choice(
    ledger: Ledger, names: Iterable[str], asker: Asker, around: ForecastInput
) -> Choice | None:
    """The best choice on any of the nodes."""
    best = None
    for name in names:
        best = on_node(ledger, name, asker, around, best) or best
    return best


def preemption(
    ledger: Ledger, names: Sequence[str], asker: Asker, policy: str, around: ForecastInput
) -> str:
    """Explains whether evictions on these nodes would help a Pod, and if not, why.

    `names` contains the nodes where the Pod lacks only devices, at least one.
    """
    no = "preemption does not help: "
    lowest = ledger.lowest_priority
    if policy == NEVER:
        return no + "its preemptionPolicy is Never"
    if lowest is None or lowest >= asker.priority:
        return no + f"no Pod with a share has a priority below {asker.priority}"
    if choice := best_choice(ledger, names, asker, around):
        if not choice.victims:
            return f"it will fit on {choice.node} once Pods there that are being deleted are gone"
        return f"preemption helps: it fits on {choice.node} without {pods_named(choice.victims)}"
    if choice := best_choice(ledger, names, asker, replace(around, heeded=False)):
        return "preemption is held back: " + held_by(choice, around.budgets)
    return no + f"without all Pods of a priority below {asker.priority} it would not fit either"


def held_by(choice: Choice, budgets: Sequence[Budget]) -> str:
    """Explains which budgets prevent the evictions of a choice."""
    by_key = {one.key: one for one in budgets}
    found = {
        key: by_key[key].allowed
        for one in choice.victims
        for key in budgets_of(one.pod[0], one.labels, budgets)
        if one.runs
    }
    names = ", ".join(f"{key} (allows {count})" for key, count in sorted(found.items()))
    who = "the eviction of " + pods_named(choice.victims) + f" on {choice.node}"
    return f"PodDisruptionBudget {names} prevents {who}" if names else f"{who} was refused"


def pods_named(pods: Iterable[SeenPod], most: int = 5) -> str:
    """Lists Pods by namespace and name, with their priorities."""
    found = list(pods)
    names = [f"{one.pod[0]}/{one.pod[1]} (priority {one.priority})" for one in found[:most]]
    if len(found) > most:
        names.append(f"{len(found) - most} more")
    return ", ".join(names)


def amounts(request: Request) -> str:
    """Describes the request of a Pod's largest container in words."""
    ask = request.together[0] if request.together else request.asks[0]
    memory = human_memory(ask.memory_bytes) if ask.memory_bytes else "all memory"
    compute = (
        f"{ask.tflops} TFLOPS"
        if ask.tflops
        else f"{format_cores(ask.cores_permille)}%"
        if ask.cores_permille
        else "all cores"
    )
    return f"{memory} and {compute} of {ask.count} device{'s' * (ask.count > 1)}"
