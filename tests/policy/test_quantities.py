"""Quantities: what people write is read exactly; what cannot be read says which units are valid."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import (
    QuantityError,
    cores_from_tflops,
    format_cores,
    format_duration,
    format_memory,
    human_memory,
    parse_cores,
    parse_duration_ns,
    parse_memory,
)
from penstock.model.quantity import LEAST_MEMORY_BYTES
from penstock_shim.pages import UNIT_BYTES


@given(st.integers(min_value=1, max_value=2**62))
def test_every_amount_of_memory_survives_being_written_and_read(size_bytes):
    assert parse_memory(format_memory(size_bytes)) == size_bytes


@given(st.integers(min_value=1, max_value=1000))
def test_every_amount_of_cores_survives_being_written_and_read(permille):
    assert parse_cores(format_cores(permille)) == permille
    assert parse_cores(float(format_cores(permille))) == permille


@given(st.integers(min_value=1, max_value=10**18))
def test_every_duration_survives_being_written_and_read(duration_ns):
    assert parse_duration_ns(format_duration(duration_ns)) == duration_ns


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("8Gi", 8 << 30),
        ("500Mi", 500 << 20),
        ("1.5Gi", 3 << 29),
        ("2k", 2000),
        ("3G", 3 * 10**9),
        ("1e9", 10**9),
        (4096, 4096),
        ("0.5", 1),
        (" 1 Gi ", 1 << 30),
    ],
)
def test_memory_is_read_as_a_kubernetes_quantity(text, size_bytes):
    assert parse_memory(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "meant"),
    [("8GB", "8G"), ("8GiB", "8Gi"), ("8gi", "8Gi"), ("8KB", "8k"), ("8m", "8M"), ("8kib", "8Ki")],
)
def test_an_unknown_unit_of_memory_names_the_valid_ones_and_the_nearest(text, meant):
    with pytest.raises(QuantityError, match="unknown unit") as caught:
        parse_memory(text)
    assert "Ki, Mi, Gi, Ti, Pi" in str(caught.value)
    assert str(caught.value).endswith(f"did you mean {meant}?")


@pytest.mark.parametrize(
    "text",
    ["0", 0, "-1Gi", -5, "0.0Gi", "", "Gi", "eight", None, True, "1e400", "9999Pi", [], "\u0661Gi"],
)
def test_memory_that_is_no_positive_amount_is_refused(text):
    with pytest.raises(QuantityError, match="memory"):
        parse_memory(text)


@pytest.mark.parametrize(
    "text", [0, "0", -1, 130, 100.1, "abc", "", None, False, "30 cores", float("nan"), float("inf")]
)
def test_cores_outside_zero_to_a_hundred_are_refused(text):
    with pytest.raises(QuantityError, match="cores"):
        parse_cores(text)


def test_cores_finer_than_a_tenth_are_refused():
    with pytest.raises(QuantityError, match="finer than the step"):
        parse_cores("12.34")


@pytest.mark.parametrize(
    ("text", "permille"), [(30, 300), (12.5, 125), ("30%", 300), ("0.1", 1), (100, 1000)]
)
def test_cores_are_percent_of_one_device(text, permille):
    assert parse_cores(text) == permille


@pytest.mark.parametrize(
    ("text", "duration_ns"),
    [("10s", 10**10), ("500ms", 5 * 10**8), ("1m30s", 9 * 10**10), ("1.5h", 5400 * 10**9)],
)
def test_durations_carry_their_unit(text, duration_ns):
    assert parse_duration_ns(text) == duration_ns


@pytest.mark.parametrize("text", ["0", "0s", "0ms"])
def test_a_grace_may_be_zero(text):
    assert parse_duration_ns(text, or_none=True) == 0
    with pytest.raises(QuantityError):
        parse_duration_ns(text)


@pytest.mark.parametrize("text", ["10", 10, "10 sec", "s", "", "-1s", "1s-", "0s", None, "1s 2"])
def test_a_duration_without_a_valid_unit_is_refused(text):
    with pytest.raises(QuantityError, match="duration"):
        parse_duration_ns(text)


def test_a_bare_number_is_answered_with_the_seconds_that_were_meant():
    with pytest.raises(QuantityError, match="did you mean 5s"):
        parse_duration_ns("5")
    with pytest.raises(QuantityError, match="no unit") as zero:
        parse_duration_ns("0")
    assert "did you mean" not in str(zero.value)


def test_tflops_become_cores_rounded_up_to_whole_percents():
    assert cores_from_tflops(120, 989) == 130
    assert cores_from_tflops(1, 989) == 10
    assert cores_from_tflops(989, 989) == 1000


def test_more_tflops_than_the_device_has_are_refused():
    with pytest.raises(QuantityError, match="more than the 121 TFLOPS"):
        cores_from_tflops(122, 121)


@given(st.integers(min_value=0, max_value=2**50))
def test_human_readable_memory_is_within_five_percent(size_bytes):
    text = human_memory(size_bytes)
    shown = 0 if text == "0B" else parse_memory(text.removesuffix("B"))
    assert abs(shown - size_bytes) <= 0.05 * size_bytes


@given(st.integers(1, 2**50))
def test_an_amount_rounded_down_is_never_more(size_bytes):
    text = human_memory(size_bytes, down=True)
    assert parse_memory(text.removesuffix("B") if text.endswith("B") else text) <= size_bytes


def test_the_least_memory_is_a_unit_of_the_shims():
    assert LEAST_MEMORY_BYTES == UNIT_BYTES
