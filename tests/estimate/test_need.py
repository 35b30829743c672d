"""From FLOPs and a wanted speed to a claim."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.estimation.inputs import parse_dims, parse_input
from penstock.estimation.memory import Memory
from penstock.estimation.need import (
    DEFAULT_EFFICIENCY,
    added_memory,
    given_efficiency,
    step_time_of,
    tflops_needed,
)
from penstock.estimation.report import Estimate
from penstock.estimation.work import Work
from penstock.model import PenstockError, parse_memory

TFLOP = 10**12


def an_estimate(flops=2 * TFLOP, peak_bytes=20 * 2**30, step_time_s=0.2, unknown=()):
    work = Work()
    work.add_contraction("forward", "mm", flops, "fp32")
    for name in unknown:
        work.add_unknown(name, 1000)
    memory = Memory({"activations": peak_bytes})
    return Estimate(
        "m", True, "fp32", 32, 1000, work, memory, added_memory(peak_bytes),
        given_efficiency(0.4, None, flops), step_time_s, (),
    )  # fmt: skip


def test_the_tflops_are_those_that_do_the_work_in_the_time():
    assert tflops_needed(2 * TFLOP, 0.2, 0.4) == pytest.approx(25)


@given(st.integers(1, 10**18), st.floats(1e-6, 1e4))
def test_a_measured_run_asks_for_as_many_tflops_as_it_had(flops, step_time_s):
    tflops = 2 * flops / step_time_s / 1e12  # half of it was reached
    measured = f"{step_time_s:.9f}s@{tflops!r}"
    efficiency = given_efficiency(None, measured, flops)
    assert efficiency.ratio == pytest.approx(0.5, rel=1e-2)
    assert tflops_needed(flops, step_time_s, efficiency.ratio) == pytest.approx(tflops, rel=1e-2)
    assert "measured" in efficiency.source


def test_the_default_efficiency_says_that_it_is_assumed():
    efficiency = given_efficiency(None, None, TFLOP)
    assert efficiency.ratio == DEFAULT_EFFICIENCY
    assert efficiency.source.startswith("assumed")


def test_a_throughput_is_a_step_time_by_the_samples_of_a_step():
    assert step_time_of(None, "500/s", 32) == pytest.approx(0.064)
    assert step_time_of(None, 500, 32) == pytest.approx(0.064)
    assert step_time_of("200ms", None, None) == pytest.approx(0.2)
    assert step_time_of(0.2, None, None) == pytest.approx(0.2)
    assert step_time_of(None, None, 32) is None


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: step_time_of("1s", "5/s", 1), "contradict"),
        (lambda: step_time_of("fast", None, 1), "--step-time"),
        (lambda: step_time_of(0, None, 1), "must be above 0"),
        (lambda: step_time_of(float("nan"), None, 1), "not a time"),
        (lambda: step_time_of(None, "0/s", 1), "throughput"),
        (lambda: step_time_of(None, "5/min", 1), "500/s"),
        (lambda: step_time_of(None, "5/s", None), "--step-time"),
        (lambda: given_efficiency(0.0, None, 1), "above 0"),
        (lambda: given_efficiency(1.1, None, 1), "up to 1"),
        (lambda: given_efficiency(float("nan"), None, 1), "up to 1"),
        (lambda: given_efficiency(0.4, "1s@1", 1), "contradict"),
        (lambda: given_efficiency(None, "1s", 1), "180ms@40"),
        (lambda: given_efficiency(None, "1s@nan", 1), "180ms@40"),
        (lambda: given_efficiency(None, "x@40", 1), "--measured"),
        (lambda: given_efficiency(None, "1s@1", 2 * TFLOP), "200%"),
        (lambda: added_memory(1, -0.1), "headroom"),
        (lambda: added_memory(1, float("inf")), "headroom"),
        (lambda: parse_input("32x"), "32x3x224x224"),
        (lambda: parse_input("0x3"), "from 1 to 1099511627776"),
        (lambda: parse_input("x".join("1" * 17)), "16 sizes"),
        (lambda: parse_input("9999999999999999x1"), "--input"),
        (lambda: parse_input("int46:8"), "did you mean int64?"),
        (lambda: parse_dims(["N"]), "N=32"),
        (lambda: parse_dims(["N=-1"]), "N=32"),
        (lambda: parse_dims(["=3"]), "N=32"),
    ],
)
def test_what_makes_no_sense_is_refused(call, word):
    with pytest.raises(PenstockError, match=word):
        call()


def test_an_input_is_a_type_and_a_shape():
    assert parse_input("32x3x224x224") == ("float32", (32, 3, 224, 224))
    assert parse_input("int64:8x1024") == ("int64", (8, 1024))
    assert parse_input("bf16:8") == ("bfloat16", (8,))


@given(st.integers(0, 2**45), st.integers(1, 10**17))
def test_the_claim_covers_what_is_needed_and_not_much_more(peak_bytes, flops):
    found = an_estimate(flops, peak_bytes)
    claimed = parse_memory(found.memory_quantity)
    assert found.memory_bytes <= claimed < found.memory_bytes * 1.1
    assert found.tflops <= found.blocks < found.tflops + 1 or found.blocks == 1


def test_the_last_line_is_the_claim():
    lines = an_estimate().lines()
    assert lines[-1] == "penstock run --tflops 25 --memory 23Gi -- …"
    assert "efficiency: 0.4 (given)" in lines


def test_unknown_operations_are_named_with_their_calls():
    lines = an_estimate(unknown=["aten.cdist", "aten.cdist"]).lines()
    assert any("aten.cdist" in line and "called 2 x" in line for line in lines)
    assert any("at least" in line for line in lines)


def test_the_data_are_plain_and_add_up():
    data = json.loads(json.dumps(an_estimate(unknown=["x"]).data()))
    memory = data["memory_bytes"]
    assert sum(size for part, size in memory.items() if part != "total") == memory["total"]
    assert data["flops"]["total"] == 2 * TFLOP
    assert data["unknown_operations"] == {"x": {"calls": 1, "elements": 1000}}
    assert data["blocks"] == 25
