"""Rated TFLOPS by precision: the table beside the profiles of the simulated devices."""

from __future__ import annotations

import pytest

from penstock.devices.rates import PRECISIONS, RATES, has_words, rated_tflops, rates_of
from penstock_shim.profiles import load_profile, profile_names


@pytest.mark.parametrize("name", profile_names())
def test_the_table_and_the_profile_of_a_simulated_device_state_the_same_rates(name):
    profile = load_profile(name)
    rates = rates_of(profile.name)
    assert rates is not None
    for precision in ("fp32", "tf32", "fp16", "fp8", "int8"):
        assert rates.at(precision) == getattr(profile.rated_tflops, precision), precision


@pytest.mark.parametrize("row", RATES, ids=lambda row: row.key)
def test_a_row_has_a_source_and_rates_that_grow_as_the_precision_falls(row):
    assert row.source.startswith("NVIDIA ")
    falling = [row.at(one) for one in ("tf32", "fp16", "fp8")]
    known = [rate for rate in falling if rate is not None]
    assert known == sorted(known)
    assert row.fp32 < row.fp16
    assert row.bf16 in {row.fp16, None}


@pytest.mark.parametrize("row", RATES, ids=lambda row: row.key)
def test_no_earlier_row_hides_a_row_of_the_table(row):
    assert rates_of(f"NVIDIA {row.key} 80GB") is row
    assert has_words(f"nvidia-{row.key}-80gb", row.key)


def test_a_model_without_a_precision_has_no_rate_at_it():
    assert rated_tflops("Tesla T4", "bf16") is None
    assert rated_tflops("Tesla T4", "int8") == 130
    assert rated_tflops("NVIDIA GeForce RTX 9999", "fp16") is None


def test_an_unknown_precision_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ValueError, match="fp32, tf32, bf16, fp16, fp8, int8"):
        rated_tflops("NVIDIA H200", "fp12")
    assert set(rates_of("NVIDIA L4").known()) == set(PRECISIONS)
