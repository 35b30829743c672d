"""Factors of sums and means, against their definition."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.training.factors import (
    Chain,
    Learned,
    Part,
    Reduction,
    UnclearLossError,
    factors_of,
)

splits = st.lists(st.integers(0, 9), min_size=2, max_size=5).filter(
    lambda one: sum(one) > 0 and len({max(1, n) for n in one}) > 1
)


def parts_of(split, chain_of):
    """Parts whose ranks without samples compute one that does not count."""
    return [Part(rows, max(1, rows), (chain_of(i, max(1, rows)),)) for i, rows in enumerate(split)]


@given(splits, st.floats(0.1, 10))
def test_means_count_by_samples(split, constant):
    parts = parts_of(split, lambda _, n: Chain(constant, (Reduction(True, n),), n, "Mean"))
    (found,) = factors_of(parts, Learned())
    assert found.factors == pytest.approx([rows / sum(split) for rows in split])


@given(splits, st.data())
def test_means_of_words_count_by_words(split, data):
    words = [data.draw(st.integers(0, 50)) for _ in split]
    parts = parts_of(
        split, lambda i, n: Chain(1.0, (Reduction(True, words[i], is_counted=True),), n, "Nll")
    )
    (found,) = factors_of(parts, Learned())
    total = sum(one for one, rows in zip(words, split, strict=True) if rows)
    assert found.factors == pytest.approx(
        [one / total if total and rows else 0 for one, rows in zip(words, split, strict=True)]
        if sum(rows > 0 for rows in split) > 1 else [float(rows > 0) for rows in split]
    )  # fmt: skip


@given(splits, st.data())
def test_a_sum_that_is_divided_by_a_number_of_the_batch_is_divided_by_that_of_all(split, data):
    assume(sum(rows > 0 for rows in split) > 1)
    things = [data.draw(st.integers(1, 99)) for _ in split]
    assume(len(set(things)) > 1)
    parts = parts_of(split, lambda i, n: Chain(1 / things[i], (Reduction(False, n),), n, "Sum"))
    (found,) = factors_of(parts, Learned())
    total = sum(one for one, rows in zip(things, split, strict=True) if rows)
    assert found.factors == pytest.approx(
        [one / total if rows else 0 for one, rows in zip(things, split, strict=True)]
    )


@given(splits)
def test_what_does_not_depend_on_the_batch_counts_on_one_card(split):
    assume(sum(rows > 0 for rows in split) > 1)
    parts = parts_of(split, lambda *_: Chain(0.1, (Reduction(False, 40),), 7, "Sum"))
    (found,) = factors_of(parts, Learned())
    assert found.reduction is None
    assert sum(found.factors) == 1
    assert all(rows for rows, one in zip(split, found.factors, strict=True) if one)


def test_what_was_learned_holds_for_parts_of_equal_size():
    learned = Learned()
    chain = Chain(1 / 3, (Reduction(False, 3),), 0, "Sum")
    with pytest.raises(UnclearLossError, match="as many samples"):
        factors_of([Part(3, 3, (chain,)), Part(3, 3, (chain,))], learned)
    other = Chain(1 / 5, (Reduction(False, 5),), 0, "Sum")
    factors_of([Part(3, 3, (chain,)), Part(5, 5, (other,))], learned)
    (found,) = factors_of([Part(3, 3, (chain,)), Part(3, 3, (chain,))], learned)
    assert found.factors == pytest.approx((0.5, 0.5))


def test_padding_that_would_count_is_refused():
    parts = [Part(2, 2, (Chain(1, (Reduction(True, 20),), 0, "Mean"),)),
             Part(3, 3, (Chain(1, (Reduction(True, 45),), 0, "Mean"),))]  # fmt: skip
    with pytest.raises(UnclearLossError, match="10 elements on one card and 15 on another"):
        factors_of(parts, Learned())
