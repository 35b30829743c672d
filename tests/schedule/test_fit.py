"""Placement: which shares a Pod gets on a node."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.share import Share
from penstock.scheduling.placement.device_state import Device, Node
from penstock.scheduling.placement.fit import fits, place, score, why_not
from penstock.scheduling.placement.pod_request import Ask, Request, totals
from penstock.scheduling.placement.reasons import Shortage

from .cases import (
    devices,
    every_placement,
    freed,
    has_room,
    nodes,
    request_of,
    requests,
    shares,
    small_asks,
)

policies = st.sampled_from(["binpack", "spread"])


def roles(request: Request):
    return [(ask.container, ask.role) for ask in request.asks]


@settings(max_examples=300)
@given(nodes, requests, policies)
def test_a_placement_never_exceeds_the_free_memory_or_compute_of_a_device(node, request, policy):
    found = place(node, request, policy)
    if isinstance(found, dict):
        assert has_room(node, request, found)


@given(nodes, requests, policies)
def test_each_container_gets_the_requested_number_of_distinct_healthy_devices_of_the_model(
    node, request, policy
):
    found = place(node, request, policy)
    if isinstance(found, dict):
        assert list(found) == [ask.container for ask in [*request.together, *request.inits]]
        by_uuid = {device.uuid: device for device in node.devices}
        for ask in request.asks:
            assert len(found[ask.container]) == ask.count
            for uuid, share in found[ask.container].items():
                assert by_uuid[uuid].healthy
                assert request.model in {"", by_uuid[uuid].model}
                assert share == ask.share(by_uuid[uuid])


@given(devices, st.lists(requests, max_size=8), policies)
def test_pods_placed_one_after_another_never_exceed_a_device(found, several, policy):
    node = Node(found)
    for request in several:
        placement = place(node, request, policy)
        if isinstance(placement, dict):
            node.take(totals(placement, roles(request)))
        assert not node.is_over


@settings(max_examples=300)
@given(nodes, requests, policies)
def test_a_pod_is_placed_exactly_if_brute_force_finds_a_placement(node, request, policy):
    is_possible = any(
        has_room(node, request, placement) for placement in every_placement(node, request)
    )
    assert isinstance(place(node, request, policy), dict) == is_possible
    assert fits(node, request) == is_possible
    assert (why_not(node, request) is None) == is_possible


@given(nodes, requests, policies)
def test_the_same_request_on_an_equal_node_gets_the_same_placement(node, request, policy):
    again = Node([replace(device) for device in node.devices])
    again.take({device.uuid: node.taken(device.uuid) for device in reversed(node.devices)})
    assert place(node, request, policy) == place(again, request, policy)
    assert place(node, request, policy) == place(node, request, policy)


@settings(max_examples=300)
@given(nodes, requests, st.randoms())
def test_whether_a_pod_fits_does_not_depend_on_the_order_of_devices(node, request, chance):
    shuffled = [*node.devices]
    chance.shuffle(shuffled)
    other = Node(shuffled)
    other.take({device.uuid: node.taken(device.uuid) for device in shuffled})
    assert fits(node, request) == fits(other, request)


@given(st.lists(small_asks, min_size=2, max_size=3), nodes)
def test_whether_a_pod_fits_does_not_depend_on_the_order_of_its_main_containers(found, node):
    main = [replace(one, role="main") for one in found]
    answers = {fits(node, request_of(order)) for order in permutations(main)}
    assert len(answers) == 1


@settings(max_examples=300)
@given(nodes, requests, st.data())
def test_what_fits_still_fits_if_a_device_gets_more_free_room(node, request, data):
    if fits(node, request):
        uuid = data.draw(st.sampled_from([device.uuid for device in node.devices]))
        more = Share(data.draw(st.integers(0, 100)), data.draw(st.integers(0, 1000)))
        assert fits(freed(node, {uuid: more}), request)


@given(devices, st.lists(shares, max_size=6), st.randoms())
def test_shares_taken_and_given_back_in_any_order_leave_the_node_empty(found, taken, chance):
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


def test_an_init_container_holds_only_what_it_needs_beyond_the_others():
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
    request = request_of([
        Ask("", memory_bytes=size, cores_permille=10) for size in (50, 30, 30)
    ])  # fmt: skip
    found = place(node, request, "spread")
    assert isinstance(found, dict)
    assert found["c0"].keys() == {"b"}


def test_tflops_become_cores_of_the_device_that_is_chosen():
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
    request = request_of([Ask("", memory_bytes=10, cores_permille=10)])
    assert place(node, request, policy) == {"c0": {first: Share(10, 10)}}
    nodes = {"emptier": Node([Device("a", "", 80)]), "fuller": node}
    best = score(list(nodes.values()), policy, 10).index(10)
    assert list(nodes)[best] == first


@given(st.lists(nodes, max_size=6), policies, st.integers(1, 100))
def test_scores_are_bounded_and_the_best_node_has_the_best_score(several, policy, best):
    scores = score(several, policy, best)
    assert len(scores) == len(several)
    assert not scores or max(scores) == best
    assert all(0 <= one <= best for one in scores)
    sign = 1 if policy == "binpack" else -1
    ordered = sorted(zip((sign * node.used for node in several), scores, strict=True))
    assert [one for _, one in ordered] == sorted(scores)
