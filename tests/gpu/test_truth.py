"""The truth that quotas are held against: traces, their union, and a wrong share."""

from __future__ import annotations

import itertools
import subprocess

import hypothesis
import pytest
from cuda.bindings import nvjitlink
from hypothesis import strategies
from tests.gpu.busy import SEGMENT, BusyTime, Segment, overlap_ns, read_trace, slices_ns, union
from tests.gpu.children import FailedError
from tests.gpu.load import Work
from tests.gpu.programs import kernels
from tests.gpu.sections.compute import judge_cell
from tests.gpu.sections.suspend import judge_gate

from penstock_shim import paths

MS, S = 1_000_000, 1_000_000_000


def duty(percent: float, begin_ns: int, end_ns: int, period_ns: int = 10 * MS) -> list[Segment]:
    """A device that is busy for a part of each period."""
    part = round(period_ns * percent / 100)
    return [Segment(at, at + part, preempted=False) for at in range(begin_ns, end_ns, period_ns)]


@pytest.mark.parametrize("architecture", ["75", "90"])
def test_the_kernels_that_say_when_they_ran_are_valid_for_real_devices(architecture):
    program = paths.workload_path("penstock-traced")
    ptx = subprocess.run([program, "--ptx"], capture_output=True, check=True).stdout
    assert linked_bytes(ptx, architecture) > 5000


@pytest.mark.parametrize("ptx", [kernels.KERNELS, kernels.EARLY])
def test_the_probes_kernels_are_valid_for_real_devices(ptx):
    assert linked_bytes(ptx, "90") > 1000


def linked_bytes(ptx: bytes, architecture: str) -> int:
    """Size of what the vendor's linker makes of it; it refuses what is not valid."""
    linker = nvjitlink.create(1, [f"-arch=sm_{architecture}"])
    try:
        nvjitlink.add_data(linker, nvjitlink.InputType.PTX, ptx, len(ptx), "kernels")
        nvjitlink.complete(linker)
        return nvjitlink.get_linked_cubin_size(linker)
    finally:
        nvjitlink.destroy(linker)


def test_a_trace_is_put_on_the_hosts_clock_and_a_broken_one_is_refused(tmp_path):
    path = tmp_path / "trace"
    path.write_bytes(SEGMENT.pack(5000, 6000, 3, 0) + SEGMENT.pack(7000, 7500, 3, 1))
    told = {"segments": 2, "missed": 0, "clock": {"host_ns": 1_000_000, "device_ns": 4000}}
    assert read_trace(path, told) == [
        Segment(1_001_000, 1_002_000, preempted=False),
        Segment(1_003_000, 1_003_500, preempted=True),
    ]
    with pytest.raises(FailedError, match="no trace"):
        read_trace(path, {**told, "segments": 0})
    with pytest.raises(FailedError, match="no room"):
        read_trace(path, {**told, "missed": 7})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FailedError, match="middle of a segment"):
        read_trace(path, told)


@hypothesis.given(
    strategies.lists(strategies.tuples(strategies.integers(0, 200), strategies.integers(1, 50)))
)
def test_a_union_counts_every_moment_once(parts):
    intervals = [(begin, begin + length) for begin, length in parts]
    moments = {at for begin, end in intervals for at in range(begin, end)}
    found = list(union(intervals))
    assert sum(end - begin for begin, end in found) == len(moments)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(found))
    busy = BusyTime.of_segments(Segment(b, e, preempted=False) for b, e in intervals)
    assert busy.until(1000) == len(moments)
    assert busy.until(100) == sum(at < 100 for at in moments)


def test_turns_and_the_gaps_between_them_are_read_from_two_traces():
    one = [Segment(at, at + 2 * MS, preempted=True) for at in range(0, 40 * MS, 4 * MS)]
    other = [Segment(at + 2 * MS + 50_000, at + 4 * MS - 50_000, preempted=True)
             for at in range(0, 40 * MS, 4 * MS)]  # fmt: skip
    assert overlap_ns(one, other) == 0
    turns, gaps = slices_ns(one, other)
    assert set(turns) == {2 * MS, 2 * MS - 100_000}
    assert set(gaps) == {50_000}
    assert overlap_ns(one, [Segment(MS, 5 * MS, preempted=False)]) == 2 * MS


@pytest.mark.parametrize(
    ("percent", "after", "reached"),
    [(50, 20, True), (55, 20, False), (50, 26, False), (20, 20, False)],
)
def test_a_tenant_that_gets_another_share_than_granted_misses_its_aim(percent, after, reached):
    segments = duty(percent, 0, 5 * S) + duty(after, 5 * S, 7 * S)
    times = (1 * S, 4 * S, 5 * S, 7 * S)
    outcome = judge_cell(50, 20, Work(), BusyTime.of_segments(segments), times)
    assert outcome.reached is reached, outcome.measured
    assert outcome.figures["bias_points"] == pytest.approx(percent - 50, abs=0.01)
    with pytest.raises(FailedError, match="windows"):
        judge_cell(50, 20, Work(), BusyTime.of_segments(segments), (S, S + MS, 5 * S, 7 * S))


def test_a_tenant_that_works_on_after_its_suspension_misses_its_aim():
    times = [(1 * S, 2 * S), (3 * S, 4 * S)]

    def at_work(after_ns):
        parts = [(0, S + after_ns), (2 * S, 3 * S + after_ns), (4 * S, 5 * S)]
        return BusyTime.of_segments(Segment(b, e, preempted=False) for b, e in parts)

    good, bad = judge_gate(200, at_work(5 * MS), times), judge_gate(200, at_work(90 * MS), times)
    assert good.reached
    assert good.figures["busy_after_worst_ms"] == pytest.approx(5)
    assert not bad.reached
    assert bad.figures["busy_after_worst_ms"] == pytest.approx(90)
    with pytest.raises(FailedError, match="no work"):
        judge_gate(200, BusyTime.of_segments([Segment(0, S, preempted=False)]), times)
