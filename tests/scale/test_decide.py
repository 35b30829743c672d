"""One decision: bounds, thresholds, missing figures, clocks."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.scheduling.replicas.decide import MAX_AGE_NS, History, Observation, Sample, decide

from .traces import SECOND_NS, Service, replica, scale_of

ODD = (math.nan, math.inf, -math.inf, -1.0, 1e308, 1e15)


def once(replicas, scale, at_ns=0, totals=None, history=None):
    """One decision."""
    return decide(Observation(at_ns, replicas, totals or {}), scale, history or History())[0]


def at_last(replicas, scale, totals=None, seconds=60):
    """The decision when the same was observed for a minute."""
    history = History()
    for second in range(seconds):
        at_ns = second * SECOND_NS
        seen = [
            replica(at_ns, one.ready, **{m: s.value for m, s in one.figures.items()})
            for one in replicas
        ]
        all_totals = {m: Sample(at_ns, s.value) for m, s in (totals or {}).items()}
        decision, history = decide(Observation(at_ns, seen, all_totals), scale, history)
    return decision


@pytest.mark.parametrize(
    ("values", "wanted"),
    [([90], 2), ([81, 81], 3), ([160, 100], 4), ([80, 80], 2), ([41, 41], 2), ([200], 3)],
)
def test_growth_is_the_total_over_the_upper_threshold(values, wanted):
    scale = scale_of(cpu=(40, 80))
    assert once([replica(cpu=value) for value in values], scale).replicas == wanted


@pytest.mark.parametrize(
    ("values", "wanted"),
    [([39, 39], 2), ([35, 35], 1), ([10] * 6, 1), ([30] * 8, 4), ([0] * 8, 1), ([40] * 8, 8)],
)
def test_shrinking_leaves_headroom_below_the_upper_threshold(values, wanted):
    scale = scale_of(cpu=(40, 80))
    assert at_last([replica(cpu=value) for value in values], scale).replicas == wanted


def test_one_metric_above_is_enough_to_grow_and_the_neediest_decides():
    scale = scale_of(cpu=(40, 80), cores=(30, 80), qps=(20, 100))
    decision = once([replica(cpu=10, cores=10, qps=250)], scale)
    assert (decision.replicas, decision.reason) == (3, "qps 250 is above 100")
    assert once([replica(cpu=90, cores=10, qps=250)], scale).replicas == 3


def test_one_metric_that_is_not_low_keeps_all_replicas():
    scale = scale_of(cpu=(40, 80), vgpuMemory=(30, 80))
    decision = at_last([replica(cpu=1, vgpu_memory=30)] * 3, scale)
    assert decision.replicas == 3
    assert "between the thresholds" in decision.reason


def test_one_step_at_most_doubles_or_adds_four():
    scale = scale_of(maximum=100, cpu=(40, 80))
    decision = once([replica(cpu=1000)], scale)
    assert (decision.replicas, "at most 5 in one step" in decision.reason) == (5, True)
    assert once([replica(cpu=1000)] * 10, scale).replicas == 20


def test_thresholds_too_close_never_shrink_into_growth():
    scale = scale_of(cpu=(79, 80))
    decision = at_last([replica(cpu=70)] * 2, scale)
    assert decision.replicas == 2
    assert decision.reason.endswith("cpu would be 140 on 1, too near 80")


def test_a_replica_without_figures_counts_as_idle_when_growing():
    scale = scale_of(cpu=(40, 80))
    assert once([replica(cpu=100), replica()], scale).replicas == 2
    assert once([replica(cpu=100), replica(cpu=100), replica()], scale).replicas == 3
    assert once([replica(cpu=250), replica()], scale).replicas == 4


def test_a_replica_without_figures_counts_as_at_the_threshold_when_shrinking():
    scale = scale_of(cpu=(40, 80))
    assert at_last([replica(cpu=10), replica()], scale).replicas == 2
    # (5 + 5 + 5 + 80) / 4 is below 40; 95 on replicas of 72 each need two
    assert at_last([replica(cpu=5)] * 3 + [replica()], scale).replicas == 2


def test_a_metric_without_reports_changes_nothing():
    scale = scale_of(cpu=(40, 80), qps=(20, 100))
    assert at_last([replica(cpu=1)] * 3, scale).replicas == 3
    assert once([replica(cpu=100)], scale).replicas == 2


def test_replicas_that_are_not_ready_are_left_out_of_the_mean_and_counted_as_room():
    scale = scale_of(cpu=(40, 80))
    decision = once([replica(cpu=100), replica(ready=False, cpu=100)], scale)
    assert decision.replicas == 2
    assert decision.values == {"cpu": 100}
    assert "1 not ready yet" in decision.reason


def test_bounds_hold_at_once_whatever_is_measured():
    scale = scale_of(2, 4, cpu=(40, 80))
    assert once([replica(cpu=50)] * 9, scale).replicas == 4
    assert once([], scale).replicas == 2
    assert once([replica(cpu=1000)] * 4, scale).replicas == 4


@pytest.mark.parametrize("odd", ODD)
def test_impossible_figures_are_not_known(odd):
    scale = scale_of(cpu=(40, 80))
    assert at_last([replica(cpu=odd)] * 3, scale).replicas == 3
    assert at_last([replica(cpu=10), replica(cpu=odd)], scale).replicas == 2


@pytest.mark.parametrize("age_ns", [MAX_AGE_NS + 1, -MAX_AGE_NS - 1])
def test_a_figure_that_is_too_old_or_from_the_future_is_not_known(age_ns):
    scale = scale_of(cpu=(40, 80))
    assert once([replica(-age_ns, cpu=100)], scale, at_ns=0).replicas == 1


def test_a_set_shrinks_to_none_only_if_demand_from_outside_is_zero():
    scale = scale_of(0, cpu=(40, 80), qps=(20, 100))
    none, some = {"qps": Sample(0, 0.0)}, {"qps": Sample(0, 0.1)}
    assert at_last([replica(cpu=1)] * 3, scale, none).replicas == 0
    assert at_last([replica(cpu=1)] * 3, scale, some).replicas == 1
    assert at_last([replica(cpu=60)], scale, none).replicas == 1
    assert at_last([replica(cpu=1)], scale).replicas == 1
    assert at_last([replica(cpu=1, qps=0)], scale).replicas == 1  # a replica's word is not outside
    assert at_last([replica(cpu=1)], scale_of(0, cpu=(40, 80))).replicas == 1


def test_demand_starts_replicas_of_a_set_that_has_none():
    scale = scale_of(0, qps=(20, 100))
    assert once([], scale, totals={"qps": Sample(0, 0.0)}).replicas == 0
    assert once([], scale, totals={"qps": Sample(0, 0.5)}).replicas == 1
    assert once([], scale, totals={"qps": Sample(0, 250)}).replicas == 3
    assert once([], scale).replicas == 1  # not known: better one too many
    kept = once([replica()], scale)  # and the one that was started for that is told so
    assert (kept.replicas, kept.reason) == (
        1, "qps not known: one replica is kept until demand is known",
    )  # fmt: skip


def test_demand_starts_a_replica_at_once_after_a_set_has_shrunk_to_none():
    scale = scale_of(0, stabilization="20s", qps=(20, 100))
    history, replicas = History(), [replica()]
    for second in range(40):
        at_ns = second * SECOND_NS
        totals = {"qps": Sample(at_ns, 0.0)}
        decision, history = decide(Observation(at_ns, replicas, totals), scale, history)
        if decision.replicas == 0:
            break
    assert decision.replicas == 0
    woken = Observation(at_ns, [], {"qps": Sample(at_ns, 5.0)})
    assert decide(woken, scale, history)[0].replicas == 1


def test_demand_from_outside_is_shared_by_those_that_are_ready():
    scale = scale_of(qps=(20, 100))
    replicas = [replica(), replica(ready=False)]
    decision = once(replicas, scale, totals={"qps": Sample(0, 150)})
    assert (decision.replicas, decision.values) == (2, {"qps": 150})
    assert once(replicas, scale, totals={"qps": Sample(0, 250)}).replicas == 3


@pytest.mark.parametrize("leap_s", [-3600, 3600, 10**9])
def test_a_clock_that_leaps_neither_shrinks_nor_stops(leap_s):
    scale = scale_of(stabilization="20s", cpu=(40, 80))
    history = History()

    def look(at_s, value):
        nonlocal history
        at_ns = at_s * SECOND_NS
        seen = Observation(at_ns, [replica(at_ns, cpu=value)] * 4, {})
        decision, history = decide(seen, scale, history)
        return decision.replicas

    assert look(0, 60) == look(1, 10) == look(1 + leap_s, 10) == 4
    counts = [look(1 + leap_s + second, 10) for second in range(1, 40)]
    assert counts[10] == 4
    assert counts[-1] == 1


loads = st.one_of(st.floats(0, 500), st.sampled_from(ODD), st.none())
scales = st.tuples(st.integers(0, 4), st.integers(4, 12), st.floats(1, 99), st.floats(0, 1)).map(
    lambda t: scale_of(t[0], t[1], cpu=(t[2] * t[3] * 0.99, t[2]))
)
pairs = st.builds(
    lambda low, high, share: scale_of(low, high, "5s", cpu=(20, 60), qps=(100 * share, 100)),
    st.integers(0, 3),
    st.integers(3, 10),
    st.floats(0.01, 0.99),
)


@st.composite
def observations(draw, at_ns):
    replicas = [
        replica(
            draw(st.sampled_from([at_ns, at_ns, at_ns - MAX_AGE_NS * 2])),
            draw(st.booleans()),
            **{metric: value for metric in ("cpu", "qps") if (value := draw(loads)) is not None},
        )
        for _ in range(draw(st.integers(0, 14)))
    ]
    total = draw(loads)
    return Observation(at_ns, replicas, {} if total is None else {"qps": Sample(at_ns, total)})


@given(st.data(), pairs)
def test_the_count_stays_within_bounds_and_never_shrinks_while_a_metric_is_not_low(data, scale):
    history, at_ns = History(), 0
    for _ in range(8):
        at_ns += data.draw(st.integers(-(10**12), 10**12))
        seen = data.draw(observations(at_ns))
        decision, history = decide(seen, scale, history)
        assert scale.min <= decision.replicas <= scale.max
        if decision.replicas < len(seen.replicas) <= scale.max:
            for metric, threshold in (("cpu", scale.metrics.cpu), ("qps", scale.metrics.qps)):
                if metric in decision.values:
                    assert decision.values[metric] < threshold.down


@given(scales, st.floats(0, 1500), st.integers(1, 12), st.integers(0, 5))
def test_a_constant_total_load_settles_and_then_never_changes(scale, load, count, start_s):
    service = Service(scale, count, start_s, saturates_at=None)
    service.run([load] * 400)
    assert len(set(service.counts[200:])) == 1, service.reasons
    assert service.turns <= 1, service.reasons


@given(scales, st.floats(0, 150), st.integers(1, 12))
def test_a_constant_load_of_each_replica_settles_and_then_never_changes(scale, each, count):
    history, counts = History(), [count]
    for second in range(600):
        at_ns = second * SECOND_NS
        seen = Observation(at_ns, [replica(at_ns, cpu=each)] * counts[-1])
        decision, history = decide(seen, scale, history)
        counts.append(decision.replicas)
    assert len(set(counts[500:])) == 1
    steps = {b > a for a, b in pairwise(counts[1:]) if a != b}
    assert len(steps) <= 1  # one direction, after bounds were put right


@given(
    pairs,
    st.lists(st.tuples(st.floats(0, 300), st.floats(0, 50), st.booleans()), min_size=1, max_size=9),
    st.lists(st.floats(0, 300), max_size=8),
)
def test_more_load_never_means_fewer_replicas(scale, loads, before):
    history = History()
    for second, value in enumerate(before):
        at_ns = second * SECOND_NS
        earlier = [replica(at_ns, cpu=value, qps=value)] * len(loads)
        _, history = decide(Observation(at_ns, earlier), scale, history)
    at_ns = len(before) * SECOND_NS
    light = [replica(at_ns, ready, cpu=a, qps=a) for a, _, ready in loads]
    heavy = [replica(at_ns, ready, cpu=a + more, qps=a + more) for a, more, ready in loads]
    fewer, _ = decide(Observation(at_ns, light), scale, history)
    more, _ = decide(Observation(at_ns, heavy), scale, history)
    assert fewer.replicas <= more.replicas
