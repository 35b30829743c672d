"""The decision over time: what holds for any sequence of observations."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.scheduling.replicas.decide import (
    GROWTH_FACTOR,
    GROWTH_STEP,
    SETTLE_PARTS,
    History,
    Observation,
    Sample,
    decide,
    thresholds_of,
)

from .traces import SECOND_NS, replica, scale_of

WINDOW_S = 8
scales = st.builds(
    lambda low, more, with_qps: scale_of(
        low, low + more, f"{WINDOW_S}s", cpu=(30, 80), **({"qps": (20, 100)} if with_qps else {})
    ),
    st.sampled_from([0, 0, 1, 2, 3]),
    st.integers(1, 9),
    st.booleans(),
)
# One second: the load of each replica, whether the newest one is ready, the demand from outside.
seconds = st.tuples(
    st.sampled_from([0.0, 20.0, 29.0, 50.0, 81.0, 150.0, 300.0]) | st.floats(0, 200),
    st.booleans(),
    st.sampled_from([None, 0.0, 0.0, 50.0, 300.0]),
)
# What lasts for a while, as loads do.
traces = st.lists(st.tuples(seconds, st.integers(1, 2 * WINDOW_S)), min_size=1, max_size=8).map(
    lambda parts: [second for second, times in parts for _ in range(times)]
)


def observed(at_s: int, count: int, second) -> Observation:
    each, is_newest_ready, demand = second
    at_ns = at_s * SECOND_NS
    replicas = [replica(at_ns, cpu=each) for _ in range(count)]
    if replicas and not is_newest_ready:
        replicas[-1] = replica(at_ns, ready=False)
    totals = {} if demand is None else {"qps": Sample(at_ns, demand)}
    return Observation(at_ns, replicas, totals)


def run(scale, trace, count: int) -> list[tuple[Observation, int]]:
    """Each second: what was observed, and the number that was decided on."""
    history, found = History(), []
    for at_s, second in enumerate(trace):
        seen = observed(at_s, count, second)
        decision, history = decide(seen, scale, history)
        count = decision.replicas
        found.append((seen, count))
    return found


def is_low(seen: Observation, scale) -> bool:
    """Whether all metrics are known and below `down`."""
    ready = [one for one in seen.replicas if one.ready]
    for metric, threshold in thresholds_of(scale).items():
        if metric in seen.totals:
            values = [seen.totals[metric].value / max(1, len(seen.replicas))]
        else:
            values = [one.figures[metric].value for one in ready if metric in one.figures]
        if not values or max(values) >= threshold.down:
            return False
    return True


@given(scales, traces, st.integers(0, 14))
def test_the_number_is_always_within_min_and_max(scale, trace, count):
    for _, replicas in run(scale, trace, count):
        assert scale.min <= replicas <= scale.max


@given(scales, traces, st.integers(0, 14))
def test_the_same_observation_and_history_give_the_same_decision(scale, trace, count):
    history = History()
    for at_s, second in enumerate(trace):
        seen = observed(at_s, count, second)
        uneven = [replica(seen.at_ns, cpu=second[0] * at / 4) for at in range(len(seen.replicas))]
        seen = Observation(seen.at_ns, uneven, seen.totals)
        decision, after = decide(seen, scale, history)
        assert (decision, after) == decide(seen, scale, history)
        other_order = Observation(seen.at_ns, [*reversed(seen.replicas)], seen.totals)
        assert decide(other_order, scale, history) == (decision, after)
        count, history = decision.replicas, after


@settings(max_examples=300)
@given(scales, traces, st.integers(0, 12))
def test_replicas_are_removed_only_after_a_whole_window_in_which_fewer_would_do(
    scale, trace, count
):
    past = run(scale, trace, min(count, scale.max))
    for at_s, (seen, replicas) in enumerate(past):
        if replicas < len(seen.replicas):
            assert at_s >= WINDOW_S, "nothing is known of the time before"
            for before, decided in past[at_s - WINDOW_S + 1 : at_s + 1]:
                if not is_low(before, scale):
                    assert len(before.replicas) <= replicas
                assert decided <= max(replicas, len(before.replicas))


@settings(max_examples=300)
@given(scales, traces, st.integers(0, 12))
def test_after_a_change_no_replica_is_added_before_figures_can_show_it(scale, trace, count):
    settle_s = WINDOW_S // SETTLE_PARTS
    changed_s = ready = None
    for at_s, (seen, replicas) in enumerate(run(scale, trace, count)):
        now_ready = sum(one.ready for one in seen.replicas)
        if ready is not None and now_ready > ready:
            changed_s = at_s
        ready = now_ready
        current = len(seen.replicas)
        if replicas > current >= max(1, scale.min) and changed_s is not None:
            assert at_s - changed_s >= settle_s
        if replicas != current:
            changed_s = at_s


@given(scales, traces, st.integers(1, 12))
def test_one_step_at_most_doubles_or_adds_four(scale, trace, count):
    for seen, replicas in run(scale, trace, count):
        current = len(seen.replicas)
        if current >= scale.min:
            assert replicas <= max(current * GROWTH_FACTOR, current + GROWTH_STEP)


@given(scales, seconds, st.integers(0, 12))
def test_the_same_values_at_every_count_change_it_in_one_direction_and_then_no_more(
    scale, second, count
):
    """Each replica's figures and the demand stay as they are, whatever is decided."""
    counts = [count, *(replicas for _, replicas in run(scale, [second] * 60, count))]
    steps = {b > a for a, b in pairwise(counts[1:]) if a != b}  # 0 to 1: bounds are put right
    assert len(steps) <= 1
    assert len(set(counts[40:])) == 1


@settings(max_examples=300)
@given(scales, traces, st.integers(0, 12))
def test_the_last_replica_is_removed_only_if_outside_demand_is_known_to_be_zero(
    scale, trace, count
):
    for seen, replicas in run(scale, trace, count):
        if replicas == 0 and len(seen.replicas) > 0:
            assert scale.min == 0
            assert scale.metrics.qps is not None
            assert seen.totals["qps"].value == 0
