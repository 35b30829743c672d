"""The heap and its pre-order."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.scheduling.slices.arrangement import arranged
from penstock.scheduling.slices.heap_order import max_heap, pre_order

SIZES = st.lists(st.integers(0, 9), max_size=40)


@given(SIZES)
def test_no_one_in_the_heap_is_larger_than_its_parent(sizes):
    heap = max_heap(sizes)
    assert sorted(heap) == list(range(len(sizes)))
    assert all(sizes[heap[at]] <= sizes[heap[(at - 1) // 2]] for at in range(1, len(heap)))


@given(st.integers(0, 70))
def test_pre_order_has_each_before_its_children_and_the_left_ones_before_the_right(count):
    def visit(at: int) -> list[int]:
        return [at, *visit(2 * at + 1), *visit(2 * at + 2)] if at < count else []

    assert pre_order(range(count)) == visit(0)


def test_equal_ones_stay_in_the_order_of_their_arrangement():
    assert max_heap([5, 5, 5, 5]) == [0, 1, 2, 3]
    assert pre_order("abcdefg") == list("abdecfg")


def test_small_workloads_stand_among_large_ones():
    sizes = list(range(100))
    order = [sizes[at] for at in pre_order(max_heap(sizes))]
    assert order[0] == 99
    assert min(order[:10]) < 50, "a leaf is reached at once"


@given(st.lists(st.text(max_size=3), unique=True), st.integers())
def test_an_arrangement_depends_on_the_seed_alone(names, seed):
    one = arranged(names, seed, lambda name: (name,))
    assert Counter(one) == Counter(names)
    assert arranged(reversed(names), seed, lambda name: (name,)) == one


def test_seeds_give_each_of_six_orders_about_as_often():
    counts = Counter("".join(arranged("abc", seed, lambda name: (name,))) for seed in range(600))
    assert len(counts) == 6
    assert 70 < min(counts.values()) <= max(counts.values()) < 130


def test_who_comes_or_goes_does_not_change_the_order_of_the_others():
    everyone = arranged("abcdefgh", 3, lambda name: (name,))
    without = arranged("abdefgh", 3, lambda name: (name,))
    assert [name for name in everyone if name != "c"] == without
