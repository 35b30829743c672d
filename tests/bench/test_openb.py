"""Placement on the openb trace: definitions by hand, replays on small clusters."""

from __future__ import annotations

from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.bench.openb_trace import write_trace

from penstock.bench.openb import migration
from penstock.bench.openb.arrivals import TypicalPod, arrivals, typical_pods
from penstock.bench.openb.bound import most_allocated_milli
from penstock.bench.openb.cluster import Cluster
from penstock.bench.openb.fragmentation import Fragmentation
from penstock.bench.openb.migration import Migration
from penstock.bench.openb.policies import POLICIES
from penstock.bench.openb.policies.policy import Setting
from penstock.bench.openb.replay import Replay, prepare, run
from penstock.bench.openb.results import NAMES, run_one, summarize
from penstock.bench.openb.trace import Node, Shape, read_nodes, read_pods
from penstock.bench.openb.worth import worth_table

HALF = Shape(cpu_milli=4000, gpu_milli=500, gpus=1)
WHOLE = Shape(cpu_milli=16_000, gpu_milli=1000, gpus=1)
NO_GPU = Shape(cpu_milli=1000, gpu_milli=0, gpus=0)
WHOLE_OF_NODE = Shape(cpu_milli=8000, gpu_milli=1000, gpus=1)
TYPICAL = [TypicalPod(HALF, 0.5), TypicalPod(WHOLE, 0.25), TypicalPod(NO_GPU, 0.25)]
SMALL_PART = Shape(cpu_milli=1000, gpu_milli=400, gpus=1)


def cluster_of(*free: list[int], cpu: int = 8000, model: str = "A") -> Cluster:
    """Nodes with this much free on their GPUs, in thousandths."""
    cluster = Cluster([Node(cpu, 65_536, len(gpus), model) for gpus in free])
    for at, gpus in enumerate(free):
        cluster.gpu[at, : len(gpus)] = gpus
    return cluster


def policy_on(cluster: Cluster, name: str, typical=TYPICAL):
    return POLICIES[name](Setting(cluster, typical, np.random.default_rng(0)))


def rated(cluster: Cluster, name: str, shape: Shape, typical=TYPICAL):
    scores, gpus = policy_on(cluster, name, typical).rate(np.arange(len(cluster)), shape)
    return scores.tolist(), gpus.tolist()


def test_fragmentation_is_what_each_typical_pod_cannot_use():
    cluster = cluster_of([1000, 400])
    found = Fragmentation(TYPICAL, cluster.models).of_nodes(cluster.cpu, cluster.gpu, cluster.model)
    # The half cannot use the 400. The whole lacks CPU and the Pod without GPU needs none: 1400.
    assert found.tolist() == [0.5 * 400 + 0.25 * 1400 + 0.25 * 1400]


def test_fragmentation_counts_a_node_of_another_model_as_unusable():
    only_b = [TypicalPod(Shape(1000, 500, 1, models=("B",)), 1.0)]
    fragmentation = Fragmentation(only_b, ("A", "B"))
    found = fragmentation.of_nodes(
        np.array([8000, 8000]), np.array([[1000, 400], [1000, 400]]), np.array([0, 1])
    )
    assert found.tolist() == [1400, 400]


def test_fragmentation_is_all_that_is_free_where_too_few_gpus_are_idle():
    two = [TypicalPod(Shape(1000, 1000, 2), 1.0)]
    cluster = cluster_of([1000, 400], [1000, 1000, 400])
    found = Fragmentation(two, cluster.models).of_nodes(cluster.cpu, cluster.gpu, cluster.model)
    assert found.tolist() == [1400, 400]


def test_fragmentation_after_each_gpu_is_that_of_the_changed_node():
    cluster = cluster_of([1000, 400, 700])
    fragmentation = Fragmentation(TYPICAL, cluster.models)
    for at, after in enumerate(
        fragmentation.after_each_gpu(cluster.cpu, cluster.gpu, cluster.model, 400)[0][:3]
    ):
        changed = cluster.gpu.copy()
        changed[0, at] -= 400
        assert after == fragmentation.of_nodes(cluster.cpu, changed, cluster.model)[0]


def test_fgd_prefers_the_gpu_whose_leftover_nobody_could_use():
    # First node: 900 before; 700 if the first GPU gives the 400, 500 if the second does.
    # Second node: 1000 before, 800 after. Scores: floor(100 / (1 + exp(-decrease / 1000))).
    scores, gpus = rated(cluster_of([1000, 400], [1000, 1000]), "fgd", SMALL_PART)
    assert scores == [59, 54]
    assert gpus == [1, 0]


def test_best_fit_prefers_the_node_with_less_left_over():
    # CPU left: 7000 of 128000; GPU left: 1000 and 1600 of 8000; both weigh one half.
    scores, gpus = rated(cluster_of([1000, 400], [1000, 1000]), "best-fit", SMALL_PART)
    assert scores == [91, 87]
    assert gpus == [1, 0]


def test_packing_prefers_the_fullest_node_and_on_it_the_fullest_gpu():
    scores, gpus = rated(cluster_of([1000, 400], [1000, 1000]), "packing", SMALL_PART)
    assert scores == [3, 0]
    assert gpus == [1, 0]


def test_a_part_whose_remainder_nothing_fills_is_worth_a_whole_gpu():
    worth = worth_table({810: 1})
    assert worth[[0, 190, 809, 810, 1000]].tolist() == [0, 0, 0, 1, 1]


def test_parts_that_fill_a_gpu_exactly_are_worth_their_size():
    worth = worth_table({500: 2, 250: 1})
    assert worth[[250, 499, 500, 750, 1000]].tolist() == [0.25, 0.25, 0.5, 0.75, 1]


def test_a_part_that_only_fills_remainders_is_worth_nothing_while_it_is_rare():
    worth = worth_table({600: 2, 400: 1})
    assert worth[[400, 600]].tolist() == [0, 1]


def test_without_parts_only_a_whole_gpu_is_worth_something():
    worth = worth_table({})
    assert worth[999] == 0
    assert worth[1000] == 1


@given(st.dictionaries(st.integers(1, 99).map(lambda n: 10 * n), st.integers(1, 50), max_size=8))
def test_no_parts_that_fit_on_one_gpu_are_worth_more_than_it(demand):
    worth = worth_table(demand)
    assert all(a <= b + 1e-9 for a, b in pairwise(worth))
    assert worth[1000] == 1
    for first in demand:
        for second in demand:
            if first + second <= 1000:
                assert worth[first] + worth[second] <= worth[first + second] + 1e-6


def test_usable_puts_a_half_beside_another_half():
    halves = [TypicalPod(HALF, 1.0)]
    cluster = cluster_of([1000, 1000], [500, 1000])
    scores, gpus = rated(cluster, "usable", HALF, halves)
    assert scores[1] > scores[0]
    assert gpus[1] == 0


def test_usable_takes_cpu_where_it_feeds_no_gpu():
    wholes = [TypicalPod(Shape(4000, 1000, 1), 1.0)]
    cluster = cluster_of([1000], [1000])
    cluster.cpu[:] = [4000, 64_000]
    scores, _ = rated(cluster, "usable", Shape(2000, 0, 0), wholes)
    assert scores[0] == pytest.approx(-0.5, abs=1e-6)  # 2000 of the 4000 that its GPU needs
    assert scores[1] == pytest.approx(0, abs=1e-6)


def test_usable_prefers_the_fullest_of_nodes_that_lose_equally():
    wholes = [TypicalPod(Shape(4000, 1000, 1), 1.0)]
    scores, _ = rated(cluster_of([1000] * 4, [1000] * 2, cpu=64_000), "usable", WHOLE, wholes)
    assert scores[1] > scores[0]


@pytest.mark.parametrize(
    ("shape", "fitting"),
    [
        (Shape(8000, 500, 1), [True, True]),
        (Shape(8001, 500, 1), [False, False]),
        (Shape(1000, 500, 1, memory_mib=65_537), [False, False]),
        (Shape(1000, 500, 1, models=("A", "B")), [True, True]),
        (Shape(1000, 500, 1, models=("B",)), [False, False]),
        (Shape(1000, 700, 1), [True, False]),  # 600 + 600 is no 700
        (Shape(1000, 1000, 1), [True, False]),
        (Shape(1000, 1000, 2), [False, False]),  # one idle GPU and 900 of another
        (Shape(1000, 0, 0), [True, True]),
    ],
)
def test_a_node_fits_by_cpu_memory_model_and_free_gpus(shape, fitting):
    assert cluster_of([1000, 900], [600, 600]).fits(np.arange(2), shape).tolist() == fitting


def test_typical_pods_are_the_most_popular_shapes_up_to_95_percent():
    other_memory = Shape(4000, 500, 1, memory_mib=512)
    typical = typical_pods([HALF] * 10 + [other_memory] * 5 + [WHOLE] * 4 + [NO_GPU])
    assert [one.shape for one in typical] == [HALF, WHOLE]  # memory does not count
    assert [one.frequency for one in typical] == [15 / 19, 4 / 19]


def test_arrivals_are_all_pods_and_then_drawn_ones_up_to_130_percent():
    pods = [HALF] * 5 + [WHOLE] * 5
    found = arrivals(pods, 10_000, seed=42)
    assert sorted(found[:10]) == sorted(pods)
    requested = sum(one.total_milli for one in found)
    assert 13_000 <= requested < 14_000
    assert set(found[10:]) <= {HALF, WHOLE}


def test_a_seed_always_gives_the_same_run_and_another_seed_another(tmp_path):
    nodes, pods = read_nodes(write_trace(tmp_path)), read_pods(tmp_path, "default")
    for policy in ("random", "usable+migration"):
        first, again, other = (run_one(nodes, pods, "default", policy, s) for s in (1, 1, 2))
        assert first == again
        assert first.allocated_percent != other.allocated_percent


@pytest.mark.parametrize("policy", NAMES)
def test_no_policy_allocates_more_than_the_bound(tmp_path, policy):
    nodes, pods = read_nodes(write_trace(tmp_path)), read_pods(tmp_path, "default")
    for seed in range(3):
        result = run_one(nodes, pods, "default", policy, seed)
        assert 50 < result.allocated_percent <= result.bound_percent <= 100


def test_the_bound_counts_remainders_that_nothing_fills():
    part, filler = Shape(1000, 810, 1), Shape(1000, 160, 1)
    assert most_allocated_milli(2000, [part, part], []) == 1620
    assert most_allocated_milli(2000, [part, part], [filler, part]) == 1780
    assert most_allocated_milli(2000, [], [WHOLE] * 9) == 2000


shapes = st.one_of(
    st.builds(Shape, st.integers(0, 9000), st.just(0), st.just(0)),
    st.builds(Shape, st.integers(0, 9000), st.integers(1, 1000), st.just(1)),
    st.builds(Shape, st.integers(0, 9000), st.just(1000), st.integers(2, 8)),
    st.builds(Shape, st.integers(0, 9000), st.just(500), st.just(1), st.just(("A",))),
)
nodes_drawn = st.lists(
    st.builds(
        Node, st.integers(4000, 40_000), st.just(1000), st.integers(1, 8), st.sampled_from("AB")
    ),
    min_size=1, max_size=6,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(nodes_drawn, st.lists(shapes, min_size=1, max_size=40))
def test_migration_knows_which_nodes_fit_as_the_cluster_does(nodes, pods):
    replay, arriving = prepare(nodes, pods, POLICIES["usable"], seed=1)
    known = migration.PlacedPods(replay)
    for shape in arriving:
        replay.arrive(shape)
        known.refresh()
    everywhere = np.arange(len(replay.cluster))
    for shape, kind in known._shapes.items():
        assert (known._fits[kind] == replay.cluster.fits(everywhere, shape)).all()


@settings(max_examples=60, deadline=None)
@given(nodes_drawn, st.lists(shapes, min_size=1, max_size=60), st.sampled_from(NAMES))
def test_nothing_is_allocated_twice_and_no_pod_is_lost(nodes, pods, name):
    replay, arriving = prepare(nodes, pods, POLICIES[name.removesuffix("+migration")], seed=1)
    capacity = {what: getattr(replay.cluster, what).copy() for what in ("cpu", "memory", "gpu")}
    mover = Migration(replay)
    with mock.patch.multiple(migration, MOST_MOVES=2, WITHIN_ARRIVALS=10):
        (mover.run if name.endswith("+migration") else lambda all_: run(replay, all_))(arriving)
    used = {what: np.zeros_like(amount) for what, amount in capacity.items()}
    for one in replay.placed:
        used["cpu"][one.node] += one.shape.cpu_milli
        used["memory"][one.node] += one.shape.memory_mib
        assert len(set(one.gpus)) == one.shape.gpus
        used["gpu"][one.node, list(one.gpus)] += one.shape.gpu_milli
    for what, amount in capacity.items():
        left = amount - used[what]
        assert (left == getattr(replay.cluster, what)).all()
        assert (left[amount >= 0] >= 0).all()
    kept = sorted([one.shape for one in replay.placed] + replay.dropped)
    assert kept == sorted(arriving)
    for at in mover.moved_at:
        assert sum(at - 10 < other <= at for other in mover.moved_at) <= 2


def test_chance_decides_between_equal_nodes_for_random_alone():
    nodes = [Node(8000, 65_536, 1, "A")] * 10
    for name, in_order in (("random", False), ("packing", True)):
        replay, _ = prepare(nodes, [HALF], POLICIES[name], seed=3)
        for _ in range(10):
            replay.arrive(WHOLE_OF_NODE)
        assert ([one.node for one in replay.placed] == list(range(10))) == in_order


def crowded() -> Replay:
    """Two nodes of one GPU, each half used, so that no whole GPU is free."""
    cluster = cluster_of([1000], [1000], cpu=40_000)
    replay = Replay(cluster, policy_on(cluster, "usable"), np.random.default_rng(0))
    replay.place(HALF, 0)
    replay.place(HALF, 1)
    return replay


def test_a_pod_that_does_not_fit_is_dropped_without_migration_and_placed_with_it():
    without = crowded()
    run(without, [WHOLE])
    assert without.dropped == [WHOLE]
    mover = Migration(crowded())
    mover.run([WHOLE])
    assert mover.moved_at == [1]
    assert mover.replay.dropped == []
    assert sorted(one.shape for one in mover.replay.placed) == [HALF, HALF, WHOLE]
    assert mover.replay.allocated_milli == 2000


def test_no_pod_moves_once_the_limit_is_reached():
    mover = Migration(crowded())
    with mock.patch.object(migration, "MOST_MOVES", 0):
        mover.run([WHOLE])
    assert mover.replay.dropped == [WHOLE]
    assert mover.moved_at == []


def test_a_summary_has_the_median_and_spread_over_seeds_beside_the_published_figure(tmp_path):
    nodes, pods = read_nodes(write_trace(tmp_path)), read_pods(tmp_path, "cpu050")
    runs = [run_one(nodes, pods, "cpu050", "fgd", seed) for seed in (1, 2, 3)]
    (row,) = summarize(runs)
    allocated = sorted(round(one.allocated_percent, 2) for one in runs)
    assert [row.least, row.median, row.most] == allocated
    assert row.published == 95.21
