"""Which shares a Pod gets on a node, and in words why none."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.scheduling.placement.device_state import Device, Node, Share
from penstock.scheduling.placement.feasibility import survey
from penstock.scheduling.placement.fit import place, score, why_not
from penstock.scheduling.placement.pod_request import Ask, Request, totals
from penstock.scheduling.placement.reasons import Shortage, grouped, sentence

GIB = 1 << 30
shares = st.builds(Share, st.integers(1, 90), st.integers(1, 1000))
asks = st.builds(
    Ask,
    st.just(""),
    role=st.sampled_from(["main", "sidecar", "init"]),
    count=st.integers(1, 3),
    memory_bytes=st.none() | st.integers(1, 90),
    cores_permille=st.none() | st.integers(1, 1000),
)
devices = st.lists(
    st.tuples(
        st.integers(40, 80),
        st.booleans(),
        st.sampled_from(["A", "B"]),
        st.sampled_from([500, 1000]),
    ),
    min_size=1, max_size=4,
).map(
    lambda found: [
        Device(f"d{at}", model, memory, cores, healthy=healthy)
        for at, (memory, healthy, model, cores) in enumerate(found)
    ]
)  # fmt: skip


def a_request(found: list[Ask], model: str = "") -> Request:
    return Request(
        tuple(
            Ask(f"c{at}", one.role, one.count, one.memory_bytes, one.cores_permille)
            for at, one in enumerate(found)
        ),
        model,
    )


def roles(request: Request):
    return [(ask.container, ask.role) for ask in request.asks]


@given(devices, st.lists(st.lists(asks, min_size=1, max_size=3), max_size=8), st.booleans())
def test_no_device_is_ever_given_beyond_what_it_has(found, pods, pack):
    node = Node(found)
    by_uuid = {one.uuid: one for one in found}
    for pod in pods:
        request = a_request(pod)
        given_ = place(node, request, "binpack" if pack else "spread")
        if isinstance(given_, Shortage):
            continue
        for ask in request.asks:
            assert len(given_[ask.container]) == ask.count
            for uuid, share in given_[ask.container].items():
                assert by_uuid[uuid].healthy
                assert share == ask.share(by_uuid[uuid])
        node.take(totals(given_, roles(request)))
        assert not node.is_over
    for one in found:
        held = node.taken(one.uuid)
        assert 0 <= held.memory_bytes <= one.memory_bytes
        assert 0 <= held.cores_permille <= one.cores_permille


@given(devices, st.lists(shares, max_size=6), asks, st.sampled_from(["", "A"]))
def test_what_one_container_asks_is_given_exactly_where_enough_devices_have_it(
    found, taken, ask, model
):
    node = Node(found)
    for at, share in enumerate(taken):
        node.take({found[at % len(found)].uuid: share})
    request = a_request([ask], model)
    enough = sum(
        one.healthy
        and model in {"", one.model}
        and (share := ask.share(one)) is not None
        and share.memory_bytes <= one.memory_bytes - node.taken(one.uuid).memory_bytes
        and share.cores_permille <= one.cores_permille - node.taken(one.uuid).cores_permille
        for one in found
    )
    for policy in ("binpack", "spread"):
        assert isinstance(place(node, request, policy), dict) == (enough >= ask.count)
    assert (why_not(node, request) is None) == (enough >= ask.count)


@given(st.lists(st.tuples(devices, st.lists(shares, max_size=4)), min_size=1, max_size=6), asks)
def test_a_survey_of_many_nodes_says_what_each_node_alone_says(nodes, ask):
    made = {}
    for at, (found, taken) in enumerate(nodes):
        made[f"n{at}"] = node = Node(found)
        for where, share in enumerate(taken):
            node.take({found[where % len(found)].uuid: share})
    request = a_request([ask])
    alone = {name: why_not(node, request) for name, node in made.items()}
    fits, lacking = survey(made, request)
    assert fits == [name for name, shortage in alone.items() if shortage is None]
    said = grouped({name: one for name, one in alone.items() if one})
    assert {name: why for why, names in lacking.items() for name in names} == said
    assert sum(map(len, lacking.values())) == len(made) - len(fits)


@given(st.lists(asks, min_size=1, max_size=3), devices)
@settings(max_examples=50)
def test_what_fits_does_so_in_whatever_order_containers_are_named(found, on):
    main = [Ask("", "main", one.count, one.memory_bytes, one.cores_permille) for one in found]
    fits = {
        isinstance(place(Node(on), a_request(list(order)), "binpack"), dict)
        for order in permutations(main)
    }
    assert len(fits) == 1


@given(devices, st.lists(shares, max_size=6), st.randoms())
def test_what_is_taken_and_given_back_in_any_order_leaves_nothing(found, taken, chance):
    node = Node(found)
    full = [*node.free_bytes], [*node.free_permille], node.used
    pods = [{found[at % len(found)].uuid: one, "gone": one} for at, one in enumerate(taken)]
    for pod in pods:
        node.take(pod)
    node.set_devices(found[1:])  # one is lost, and comes back with what is taken of it
    chance.shuffle(pods)
    for pod in pods[1:]:
        node.give_back(pod)
    node.set_devices(found)
    for pod in pods[:1]:
        assert node.taken("gone") == pod["gone"]
        node.give_back(pod)
    assert (node.free_bytes, node.free_permille, node.used) == full
    assert node.is_untaken


def test_an_init_container_costs_only_what_it_needs_beyond_the_others():
    request = Request((
        Ask("fetch", "init", memory_bytes=70, cores_permille=500),
        Ask("side", "sidecar", memory_bytes=10, cores_permille=100),
        Ask("warm", "init", memory_bytes=60, cores_permille=900),
        Ask("main", "main", memory_bytes=40, cores_permille=400),
    ))  # fmt: skip
    found = place(Node([Device("a", "", 80), Device("b", "", 80)]), request, "spread")
    assert isinstance(found, dict)
    assert {uuid for given_ in found.values() for uuid in given_} >= {"a"}
    together = place(Node([Device("a", "", 80)]), request, "binpack")
    assert isinstance(together, dict)
    # fetch alone 70; warm beside side 70 and 1000; side and main 50
    assert totals(together, roles(request)) == {"a": Share(70, 1000)}
    node = Node([Device("a", "", 80)])
    node.take({"a": Share(11, 0)})
    short = place(node, request, "binpack")
    assert isinstance(short, Shortage)
    assert short.memory_bytes == 1


def test_several_containers_find_the_one_way_in_which_they_fit():
    """The largest first would take the place of the two that fit only there together."""
    node = Node([Device("a", "", 60), Device("b", "", 50)])
    request = a_request([
        Ask("", memory_bytes=size, cores_permille=10) for size in (50, 30, 30)
    ])  # fmt: skip
    found = place(node, request, "spread")
    assert isinstance(found, dict)
    assert found["c0"].keys() == {"b"}


def test_tflops_are_cores_of_whatever_card_they_land_on():
    ask = Ask("c", tflops=100)
    node = Node([Device("small", "", 80, tflops=120.0), Device("large", "", 80, tflops=1000.0)])
    node.take({"small": Share(1, 500)})
    found = place(node, Request((Ask("c", memory_bytes=1, tflops=100),)), "binpack")
    assert found == {"c": {"large": Share(1, 100)}}
    assert ask.share(Device("x", "", 80, tflops=90.0)) is None
    assert why_not(Node([Device("x", "", 80)]), Request((ask,))) == Shortage("tflops-unknown")


@pytest.mark.parametrize(("policy", "first"), [("binpack", "fuller"), ("spread", "emptier")])
def test_devices_and_nodes_are_filled_as_the_policy_says(policy, first):
    node = Node([Device("emptier", "", 80), Device("fuller", "", 80)])
    node.take({"fuller": Share(30, 100)})
    request = a_request([Ask("", memory_bytes=10, cores_permille=10)])
    assert place(node, request, policy) == {"c0": {first: Share(10, 10)}}
    nodes = {"emptier": Node([Device("a", "", 80)]), "fuller": node}
    best = score(list(nodes.values()), policy, 10).index(10)
    assert list(nodes)[best] == first
    assert score([], policy, 10) == []
    assert set(score([node, node], policy, 10)) == {10}


def test_many_nodes_are_told_in_one_sentence_with_the_figure_of_the_nearest():
    shortages = {
        **{f"m{at}": Shortage("memory", memory_bytes=(at + 2) * GIB) for at in range(6)},
        "one": Shortage("cores", cores_permille=25),
        **{f"o{at}": Shortage("said", text="cordoned") for at in range(2)},
    }
    assert sentence(grouped(shortages).values()) == (
        "6 nodes: memory short by 2Gi at best; 2 nodes: cordoned; "
        "1 node: cores short by 2.5% at best"
    )
    assert sentence([]) == ""
