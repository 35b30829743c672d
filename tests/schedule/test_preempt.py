"""Preemption: which Pods are evicted for one of a higher priority."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.model.share import Share
from penstock.scheduling.placement.device_state import Device, Node
from penstock.scheduling.placement.fit import fits, place
from penstock.scheduling.placement.pod_request import Ask, Request
from penstock.scheduling.placement.preempt import MOST_TRIES, Holder, choose, rank

from .cases import freed, request_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Placed = tuple[Node, list[Holder]]
DEVICES = [Device("d0", "A", 80), Device("d1", "B", 60), Device("d2", "A", 80, healthy=False)]


def placed(
    found: list[tuple[list[int], int, int, int, tuple[str, ...]]],
) -> tuple[Node, list[Holder]]:
    """A node with those Pods for which there is room, in turn."""
    node, holders = Node(DEVICES), []
    for at, (on, memory, cores, priority, budgets) in enumerate(found):
        shares = {f"d{device}": Share(memory, cores) for device in on}
        node.take(shares)
        if node.is_over:
            node.give_back(shares)
            continue
        holders.append(Holder(f"u{at}", priority, float(at), shares, budgets))
    return node, holders


@dataclass
class Case:
    """A node with Pods, and one that asks for room."""

    placed: Placed
    request: Request
    priority: int
    allowed: dict[str, int]

    @property
    def node(self) -> Node:
        return self.placed[0]

    @property
    def holders(self) -> list[Holder]:
        return self.placed[1]

    @cached_property
    def victims(self) -> tuple[Holder, ...] | None:
        return self.choose()

    def choose(self, **more) -> tuple[Holder, ...] | None:
        arguments = {"holders": self.holders, "allowed": self.allowed, **more}
        return choose(self.node, self.request, self.priority, **arguments)

    def fits_without(self, several: Sequence[Holder]) -> bool:
        node = self.node
        for one in several:
            node = freed(node, one.shares)
        return fits(node, self.request)

    def is_permitted(self, several: Sequence[Holder]) -> bool:
        """By their budgets."""
        names = [name for one in several for name in one.budgets]
        return all(names.count(name) <= self.allowed[name] for name in names)

    def by_brute_force(self) -> Iterator[tuple[Holder, ...]]:
        """All sets of Pods of a lower priority that may be evicted and whose eviction is enough."""
        lower = [one for one in self.holders if one.priority < self.priority]
        for count in range(len(lower) + 1):
            for several in combinations(lower, count):
                if self.is_permitted(several) and self.fits_without(several):
                    yield several

    @property
    def is_small(self) -> bool:
        """Whether all sets are tried; of more, the first that is found may be taken."""
        lower = [one for one in self.holders if one.priority < self.priority]
        return 2 ** len(lower) <= MOST_TRIES


budgets = st.sampled_from([(), (), ("x",), ("x",), ("y",), ("x", "y")])
cases = st.builds(
    Case,
    st.lists(
        st.tuples(
            st.sampled_from([[0], [0], [0], [1], [2], [0, 1]]),
            st.integers(5, 25) | st.integers(5, 50),
            st.integers(50, 250) | st.integers(50, 600), st.sampled_from([0, 0, 1, 2, 3]), budgets,
        ),
        min_size=2, max_size=12,
    ).map(placed),
    st.builds(
        request_of,
        st.lists(
            st.builds(
                Ask, st.just(""), count=st.sampled_from([1, 1, 1, 2]),
                memory_bytes=st.integers(30, 80) | st.integers(1, 90),
                cores_permille=st.integers(1, 600) | st.integers(1, 1000),
            ),
            min_size=1, max_size=2,
        ),
        st.sampled_from(["", "A"]),
    ),
    st.sampled_from([0, 1, 2, 3, 4, 4, 4, 4]),
    st.fixed_dictionaries({"x": st.integers(0, 2), "y": st.integers(0, 2)}),
)  # fmt: skip


@given(cases)
def test_a_pod_of_the_same_or_a_higher_priority_is_never_evicted(case):
    assert all(one.priority < case.priority for one in case.victims or ())


@given(cases)
def test_when_the_victims_are_gone_the_pod_is_placed(case):
    if case.victims is not None:
        node = case.node.copy()
        for one in case.victims:
            node.give_back(one.shares)
        assert isinstance(place(node, case.request, "binpack"), dict)


@settings(max_examples=300)
@given(cases)
def test_without_any_one_of_the_evictions_the_pod_would_not_fit(case):
    for one in case.victims or ():
        assert not case.fits_without([other for other in case.victims if other is not one])


@given(cases)
def test_nobody_is_evicted_for_a_pod_that_fits_already(case):
    assert (case.victims == ()) == fits(case.node, case.request)


@settings(max_examples=300)
@given(cases)
def test_no_disruption_budget_is_exceeded(case):
    assert case.is_permitted(case.victims or ())


@settings(max_examples=300)
@given(cases)
def test_if_no_victims_are_found_no_permitted_set_of_pods_would_do(case):
    assume(case.is_small)
    if case.victims is None:
        assert list(case.by_brute_force()) == []


@settings(max_examples=300)
@given(cases)
def test_victims_have_the_lowest_sufficient_priority_and_are_the_fewest_of_it(case):
    assume(case.is_small)
    if case.victims:
        best = min(rank(several)[:2] for several in case.by_brute_force())
        assert rank(case.victims)[:2] == best


@settings(max_examples=300)
@given(cases)
def test_of_single_pods_that_would_do_the_youngest_of_the_lowest_priority_is_evicted(case):
    assume(case.is_small)
    if case.victims and len(case.victims) == 1:
        single = [several for several in case.by_brute_force() if len(several) == 1]
        assert case.victims == min(single, key=rank)


@given(cases, st.randoms())
def test_the_victims_do_not_depend_on_the_order_of_pods(case, chance):
    shuffled = [*case.holders]
    chance.shuffle(shuffled)
    assert case.choose(holders=shuffled) == case.victims


@given(cases)
def test_choosing_victims_leaves_the_node_as_it_was(case):
    before = [case.node.taken(one.uuid) for one in DEVICES]
    case.choose()
    assert [case.node.taken(one.uuid) for one in DEVICES] == before


others = st.builds(
    Holder, st.just("other"), st.sampled_from([0, 0, 1, 2, 3]), st.floats(0, 12), st.just({})
)
elsewhere = st.lists(others, min_size=1, max_size=1) | st.lists(others, min_size=1, max_size=3)


@settings(max_examples=300)
@given(cases, elsewhere)
def test_only_victims_better_than_the_best_of_other_nodes_are_chosen(case, best):
    assume(not fits(case.node, case.request))
    is_better = case.victims is not None and rank(case.victims) < rank(best)
    assert case.choose(best=best) == (case.victims if is_better else None)


def test_of_equal_choices_on_two_nodes_the_younger_pod_is_evicted():
    node, holders = placed([([0], 30, 100, 0, ()), ([0], 30, 100, 0, ())])
    wants = request_of([Ask("", memory_bytes=50, cores_permille=10)], "A")
    (young,) = choose(node, wants, 1, holders, allowed={}, best=[Holder("other", 0, 0.5, {})]) or ()
    assert young.uid == "u1"
    assert choose(node, wants, 1, holders, allowed={}, best=[Holder("other", 0, 1.5, {})]) is None


def test_two_less_important_pods_are_evicted_rather_than_one_more_important_one():
    node, holders = placed([([0], 20, 10, 0, ()), ([0], 20, 10, 0, ()), ([0], 40, 10, 1, ())])
    wants = request_of([Ask("", memory_bytes=40, cores_permille=10)], "A")
    victims = choose(node, wants, 2, holders, allowed={})
    assert victims
    assert sorted(one.uid for one in victims) == ["u0", "u1"]


def test_of_many_pods_on_one_device_the_most_important_and_oldest_are_spared():
    """There are more sets of them than are tried."""
    full = [([0], 2, 10, at % 3, ()) for at in range(40)] + [([1], 60, 10, 3, ())]
    node, holders = placed(full)
    victims = choose(
        node, Request((Ask("m", memory_bytes=40, cores_permille=10),)), 9, holders, allowed={}
    )
    assert victims
    assert len(victims) == 20
    assert sorted(one.priority for one in victims) == [0] * 14 + [1] * 6
    spared = [one for one in holders if one not in victims and one.priority == 1]
    assert max(one.since_s for one in spared) < min(
        one.since_s for one in victims if one.priority == 1
    )
