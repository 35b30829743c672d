"""How a batch is split over cards, and what speeds have to do with it."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.training.speeds import FIRST, Speeds
from penstock.training.split import split_batch, unequal

weights = st.lists(st.floats(0, 1000, allow_subnormal=False), min_size=1, max_size=8)


@given(st.integers(0, 5000), weights)
def test_every_sample_has_one_card_and_each_card_its_share(rows, given_weights):
    assume(sum(given_weights) > 0)
    counts = split_batch(rows, given_weights)
    assert sum(counts) == rows
    total = sum(given_weights)
    for count, weight in zip(counts, given_weights, strict=True):
        assert abs(count - rows * weight / total) < 1 + 1e-6


@given(st.integers(1, 500), weights, st.data())
def test_no_card_gets_more_than_its_memory_holds(rows, given_weights, data):
    bounds = [data.draw(st.none() | st.integers(0, rows)) for _ in given_weights]
    assume(all(one > 0 for one in given_weights))
    room = sum(rows if one is None else one for one in bounds)
    if room < rows:
        with pytest.raises(ValueError, match="do not fit"):
            split_batch(rows, given_weights, bounds)
        return
    counts = split_batch(rows, given_weights, bounds)
    assert sum(counts) == rows
    for count, bound in zip(counts, bounds, strict=True):
        assert bound is None or count <= bound


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_cards_never_have_equal_parts(counts):
    made = unequal(tuple(counts))
    assert sum(made) == sum(counts)
    assert min(made) >= 0
    assert max(abs(a - b) for a, b in zip(made, counts, strict=True)) <= 1
    if sum(one > 0 for one in counts) > 1:
        assert len({max(1, one) for one in made}) > 1 or sum(one > 0 for one in made) == 1


def test_what_a_full_card_cannot_take_goes_to_the_others_in_proportion():
    assert split_batch(100, [8, 1, 1], [20, None, None]) == (20, 40, 40)


def test_without_any_weight_there_is_no_split():
    with pytest.raises(ValueError, match="weight"):
        split_batch(4, [0, 0])


def test_weights_follow_measured_speeds_and_a_card_that_slows_down_within_twenty_steps():
    speeds = Speeds([1, 1])
    for _ in range(FIRST + 1):
        speeds.add([32, 32], [0.1, 0.3])
    assert split_batch(64, speeds.weights) == (48, 16)
    steps = 0
    while abs(split_batch(64, speeds.weights)[0] - 64 * 80 / 187) > 1.5:
        steps += 1
        counts = split_batch(64, speeds.weights)
        speeds.add(counts, [counts[0] / 80, counts[1] / 107])  # the first has become slower
    assert 2 < steps < 20


def test_noise_does_not_change_the_split():
    speeds = Speeds([1, 1])
    for at in range(50):
        speeds.add([32, 32], [0.1 + 0.001 * (at % 2), 0.1])
    assert speeds.weights == (1, 1)
