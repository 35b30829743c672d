"""Who has to go for a Pod of a higher priority: nobody in vain, nobody of its own rank."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.scheduling.placement.device_state import Device, Node, Share
from penstock.scheduling.placement.fit import fits
from penstock.scheduling.placement.pod_request import Ask, Request
from penstock.scheduling.placement.preempt import MOST_TRIES, Holder, choose, rank

DEVICES = [Device("d0", "A", 80), Device("d1", "B", 60), Device("d2", "A", 80, healthy=False)]


def placed(found: list[tuple[int, int, int, int, str]]) -> tuple[Node, list[Holder]]:
    """A node that holds those for whom there is room, in turn; nothing of it is over."""
    node, holders = Node(DEVICES), []
    for at, (device, memory, cores, priority, budget) in enumerate(found):
        shares = {f"d{device}": Share(memory, cores)}
        node.take(shares)
        if node.is_over:
            node.give_back(shares)
            continue
        budgets = (budget,) if budget else ()
        holders.append(Holder(f"u{at}", priority, float(at), shares, budgets))
    return node, holders


pods = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(5, 50), st.integers(50, 600), st.integers(0, 3),
        st.sampled_from(["", "", "x", "y"]),
    ),
    max_size=12,
)  # fmt: skip
one_ask = st.builds(
    Ask,
    st.just("main"),
    count=st.integers(1, 2),
    memory_bytes=st.integers(1, 90),
    cores_permille=st.integers(1, 1000),
)
requests = st.builds(
    Request,
    st.lists(one_ask, min_size=1, max_size=2).map(
        lambda asks: tuple(
            Ask(f"c{at}", "main", one.count, one.memory_bytes, one.cores_permille)
            for at, one in enumerate(asks)
        )
    ),
    model=st.sampled_from(["", "A"]),
)


def without(node: Node, several) -> Node:
    left = Node(DEVICES)
    left.take({one.uuid: node.taken(one.uuid) for one in DEVICES})
    for one in several:
        left.give_back(one.shares)
    return left


def allowed_all(several, allowed: dict[str, int]) -> bool:
    names = [name for one in several for name in one.budgets]
    return all(names.count(name) <= allowed[name] for name in names)


@settings(max_examples=300)
@given(pods, requests, st.integers(0, 4), st.integers(0, 3), st.integers(0, 3))
def test_victims_make_room_are_all_needed_are_lower_and_within_their_budgets(
    found, request, priority, x, y
):
    node, holders = placed(found)
    allowed = {"x": x, "y": y}
    was = [node.taken(one.uuid) for one in DEVICES]
    victims = choose(node, request, priority, holders, allowed=allowed)
    assert [node.taken(one.uuid) for one in DEVICES] == was
    lower = [one for one in holders if one.priority < priority]
    if victims is None:
        assert not fits(node, request)
        if 2 ** len(lower) <= MOST_TRIES:  # then nothing at all would have made room
            assert not any(
                allowed_all(several, allowed) and fits(without(node, several), request)
                for count in range(len(lower) + 1)
                for several in combinations(lower, count)
            )
        return
    assert all(one.priority < priority for one in victims)
    assert allowed_all(victims, allowed)
    assert fits(without(node, victims), request)
    for one in victims:
        assert not fits(without(node, [other for other in victims if other is not one]), request)
    if 2 ** len(lower) <= MOST_TRIES and victims:
        # nothing lower would do, and of the same priority nothing with fewer
        for count in range(1, len(lower) + 1):
            for several in combinations(lower, count):
                if allowed_all(several, allowed) and fits(without(node, several), request):
                    assert rank(several)[:2] >= rank(victims)[:2]


def test_what_is_known_from_another_node_bounds_the_search():
    node, holders = placed([(0, 30, 100, 0, ""), (0, 30, 100, 0, ""), (1, 60, 100, 0, "")])
    wants_two = Request((Ask("m", memory_bytes=70, cores_permille=10),))
    elsewhere = [Holder("other", 0, 9.0, {})]
    both = choose(node, wants_two, 1, holders, allowed={})
    assert both
    assert [one.uid for one in both] == ["u1", "u0"]
    assert choose(node, wants_two, 1, holders, allowed={}, best=elsewhere) is None
    # of equals the younger goes
    wants_one = Request((Ask("m", memory_bytes=50, cores_permille=10),), model="A")
    young = choose(node, wants_one, 1, holders, allowed={}, best=[Holder("other", 0, 0.5, {})])
    assert young
    assert [one.uid for one in young] == ["u1"]
    assert (
        choose(node, wants_one, 1, holders, allowed={}, best=[Holder("other", 0, 1.5, {})]) is None
    )


def test_many_on_one_device_are_spared_by_importance_and_age():
    """More sets than can be tried: still nobody goes who need not."""
    full = [(0, 2, 10, at % 3, "") for at in range(40)] + [(1, 60, 10, 3, "")]
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
