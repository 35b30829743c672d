"""Formulas: FLOPs that are counted one by one, and equalities between operations."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.estimation.flops import (
    FORMULAS,
    FORWARD,
    FUSED_BACKWARD,
    attention_flops,
    convolution_flops,
    matmul_flops,
)
from penstock.estimation.operations import ELEMENTWISE, FREE

size = st.integers(1, 5)


@given(size, size, size, size)
def test_a_product_has_two_flops_for_each_term_of_each_sum(batch, rows, inner, columns):
    terms = sum(1 for _ in itertools.product(*map(range, (batch, rows, inner, columns))))
    assert matmul_flops(rows, inner, columns, batch) == 2 * terms


@given(size, size, size, st.integers(1, 3), size, st.integers(1, 3))
def test_a_convolution_has_two_flops_for_each_tap_of_each_result(
    images, size_after, kernel, groups, width, after
):
    result = (images, after * groups, size_after)
    weight = (after * groups, width, kernel)
    image = (images, width * groups, 10)  # its size decides nothing
    taps = sum(
        1
        for _ in itertools.product(
            range(images), range(after * groups), range(size_after), range(width), range(kernel)
        )
    )
    assert convolution_flops(image, weight, result, transposed=False) == 2 * taps


@given(size, size, size, size, size)
def test_a_transposed_convolution_costs_what_the_convolution_does_whose_gradient_it_is(
    images, before, after, kernel, places
):
    wide, narrow = (images, before, 3 * places), (images, after, places)
    weight = (after, before, kernel)
    forward = convolution_flops(wide, weight, narrow, transposed=False)
    assert convolution_flops(narrow, weight, wide, transposed=True) == forward


def convolution_arguments(image, weight, groups, mask):
    forward = [image, weight, None, [1], [0], [1], False, [0], groups]
    backward = [None, image, weight, None, [1], [0], [1], False, [0], groups, mask]
    return forward, backward


@pytest.mark.parametrize(("mask", "times"), [((1, 1, 1), 2), ((0, 1, 1), 1), ((0, 0, 1), 0)])
def test_the_backward_of_a_convolution_costs_one_forward_for_each_gradient(mask, times):
    forward, backward = convolution_arguments((2, 4, 9), (6, 2, 3), 2, mask)
    result = (2, 6, 7)
    backward[0] = result
    once = FORMULAS["convolution"](forward, [result])
    assert FORMULAS["convolution_backward"](backward, []) == times * once


@given(size, size, size, size, size, size)
def test_attention_is_its_two_products(batch, heads, queries, keys, width, value_width):
    query, key = (batch, heads, queries, width), (batch, heads, keys, width)
    value = (batch, heads, keys, value_width)
    scores = matmul_flops(queries, width, keys, batch * heads)
    answers = matmul_flops(queries, keys, value_width, batch * heads)
    assert attention_flops(query, key, value, FORWARD) == scores + answers
    again = 3 * scores + 2 * answers
    assert attention_flops(query, key, value, FUSED_BACKWARD) == again


def test_attention_with_fewer_heads_of_keys_costs_the_same():
    query, key = (2, 8, 16, 4), (2, 2, 16, 4)
    assert attention_flops(query, key, key, FORWARD) == attention_flops(
        query, query, query, FORWARD
    )


def test_a_grouped_product_costs_one_row_by_matrix_for_each_row():
    rows, inner, columns, groups = 12, 5, 7, 3
    together = FORMULAS["_grouped_mm"]([(rows, inner), (groups, inner, columns)], [(rows, columns)])
    assert together == matmul_flops(rows, inner, columns)
    gradient = FORMULAS["_grouped_mm"]([(inner, rows), (rows, columns)], [(groups, inner, columns)])
    assert gradient == together


def test_no_operation_is_both_counted_and_free():
    assert not FREE & ELEMENTWISE
    assert not FREE & set(FORMULAS)
    assert not ELEMENTWISE & set(FORMULAS)
