"""Elastic allowance: idle time goes to who asks, and back to its owner at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.node.supervision.elastic import (
    HEADROOM_PERMILLE,
    MOST_LOST_PERMILLE,
    PROBE_PERMILLE,
    Demand,
    allowances,
)


def demand(tenant, cores, *, elastic=True, used=0, asking=False, active=None):
    return Demand(tenant, cores, elastic, used, asking, bool(used) if active is None else active)


def test_a_lone_elastic_tenant_that_asks_gets_the_whole_device():
    assert allowances([demand("a", 300, used=300, asking=True)]) == {"a": 1000}


def test_a_strict_tenant_never_gets_more_than_its_cores():
    assert allowances([demand("a", 300, elastic=False, used=300, asking=True)]) == {"a": 300}


def test_an_idle_neighbours_share_is_handed_out_and_withdrawn_when_it_asks():
    taker = demand("taker", 300, used=300, asking=True)
    assert allowances([taker, demand("owner", 700, elastic=False)])["taker"] == 1000
    asking = demand("owner", 700, elastic=False, asking=True, active=True)
    assert allowances([taker, asking])["taker"] == 300


def test_a_neighbour_that_uses_little_keeps_a_little_more_than_that():
    taker = demand("taker", 300, used=300, asking=True)
    owner = demand("owner", 700, elastic=False, used=100)
    assert allowances([taker, owner])["taker"] == 1000 - 100 - HEADROOM_PERMILLE


def test_spare_time_is_shared_by_cores():
    both = [demand("a", 300, used=750, asking=True), demand("b", 100, used=250, asking=True)]
    assert allowances(both) == {"a": 750, "b": 250}


def test_what_switching_between_busy_tenants_costs_is_shared_by_cores_too():
    both = [demand("a", 300, used=715, asking=True), demand("b", 100, used=240, asking=True)]
    shares = allowances(both)
    assert sum(shares.values()) == 715 + 240 + PROBE_PERMILLE
    assert shares["a"] == 3 * shares["b"]


def test_a_device_that_gives_more_again_is_shared_out_again_within_some_seconds():
    shares = {"a": 712, "b": 238}
    for _ in range(10):
        shares = allowances(
            [
                demand("a", 300, used=shares["a"], asking=True),
                demand("b", 100, used=shares["b"], asking=True),
            ]
        )
    assert sum(shares.values()) == 1000


def test_busy_tenants_that_just_began_are_given_nearly_all_of_the_device():
    both = [demand("a", 300, active=True, asking=True), demand("b", 100, active=True, asking=True)]
    assert sum(allowances(both).values()) == 1000 - MOST_LOST_PERMILLE


def test_what_one_cannot_use_goes_to_the_other():
    both = [demand("a", 300, used=380), demand("b", 100, used=100, asking=True)]
    shares = allowances(both)
    assert shares["a"] == 400
    assert shares["b"] == 600


demands = st.lists(
    st.builds(
        Demand,
        tenant=st.uuids().map(str),
        cores_permille=st.integers(1, 1000),
        elastic=st.booleans(),
        used_permille=st.integers(0, 1000),
        asking=st.booleans(),
        active=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda d: d.tenant,
)


@given(demands)
def test_nobody_gets_less_than_its_cores_and_no_strict_tenant_more(everybody):
    shares = allowances(everybody)
    assert shares.keys() == {d.tenant for d in everybody}
    for d in everybody:
        assert d.cores_permille <= shares[d.tenant] <= 1000
        if not d.elastic:
            assert shares[d.tenant] == d.cores_permille


@given(demands)
def test_what_is_handed_out_is_never_more_than_what_is_spare(everybody):
    shares = allowances(everybody)
    kept = sum(min(d.cores_permille, d.need_permille) for d in everybody)
    handed_out = sum(max(0, shares[d.tenant] - d.cores_permille) for d in everybody)
    assert handed_out <= max(0, 1000 - kept)


@given(demands)
def test_the_order_in_which_tenants_are_listed_does_not_matter(everybody):
    assert allowances(everybody) == allowances(everybody[::-1])
