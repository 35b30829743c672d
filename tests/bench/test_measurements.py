"""Each measurement runs on the real parts and tells what it is to tell.

No figure is judged here: that is what `penstock bench` is for.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from penstock.bench import (
    calls,
    collectives,
    figures,
    memory,
    node,
    quota,
    singly,
    start,
    starved,
    stays,
    suspend,
    tenants,
)
from penstock.bench.collectives import Cell, CollectiveRow
from penstock.bench.figures import Figure, Report
from penstock.bench.machine import machine_facts
from penstock.bench.quota import QuotaRow, Workload
from penstock.bench.stage import Stage
from penstock.cli.app import command_line
from penstock_shim import paths

pytestmark = pytest.mark.timed
BENCH = Path(__file__).parents[2] / "bench"


def test_starts_are_measured_alone_and_with_neighbours() -> None:
    rows = start.run(rounds=2, neighbours=(0, 3))
    assert [(row.what, row.neighbours) for row in rows] == [
        ("no gpu", 0),
        ("first calls", 0),
        ("first calls", 3),
    ]
    assert all(row.native_median_us > 0 for row in rows)


def test_a_suspended_tenant_stops_within_its_bound_and_comes_back() -> None:
    (row,) = suspend.run(kernels_us=[500], rounds=2)
    assert row.busy_after_worst_ms <= row.bound_ms


def test_racing_processes_never_pass_the_limit_and_leave_nothing_when_killed() -> None:
    (row,) = memory.run(processes=4, seconds=0.5, rounds=2)
    assert row.granted
    assert row.refused
    assert row.peak_ledger_bytes <= row.limit_bytes
    assert row.left_bytes == 0


def test_the_shims_own_driver_calls_are_counted_by_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "WORKLOADS", {"one": (1, ["--kernel-us", "200"])})
    (row,) = calls.run(seconds=0.5)
    assert row.launches_per_s > 100
    assert row.added_calls_per_s > 0


def test_tenants_of_penstock_run_are_measured_side_by_side() -> None:
    (row,) = tenants.run(counts=[2], modes=["strict"], seconds=1)
    assert row.got.count(" ") == 1
    assert row.total_percent == pytest.approx(sum(map(float, row.got.split())), abs=0.2)


def test_a_quota_row_tells_how_the_use_followed_a_change() -> None:
    row = quota.measure("h200", 30, Workload(kernel_us=500), seconds=2)
    assert row.windows > 0
    assert row.settled_error_points >= 0


def test_grants_are_timed_while_the_processes_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "GRANTS", 5)
    monkeypatch.setattr(node, "SETTLE_S", 0.1)
    idle, at_work = node.run(tenants=3, processes=3, seconds=0.5)
    assert (idle.tenants, idle.processes, idle.grants) == (3, 0, 3)
    assert (at_work.tenants, at_work.processes, at_work.grants) == (3, 3, 5)
    assert 0 < at_work.grant_median_ms <= at_work.grant_p99_ms


def test_a_process_that_is_held_at_work_launches_again_and_again() -> None:
    with Stage("h200") as stage:
        tenant = stage.tenant("tenant", 50)
        program = str(paths.workload_path("penstock-start"))
        stage.start(tenant, ["--hold", "--every-ms", "20"], program=program)
        stage.wait_until_busy(["tenant"])
        before = tenant.usage.snapshot().devices[0].launches
        stage.watch(1)
        assert tenant.usage.snapshot().devices[0].launches - before > 5


def test_single_launches_and_decode_loops_are_compared_with_those_without_the_shim() -> None:
    rows = singly.run(rounds=2, calls={0: 200, 200: 100}, decode_calls=400)
    assert [(row.pattern, row.threads, row.arm) for row in rows] == [
        (pattern, threads, arm)
        for pattern, threads in (("back to back", 1), ("200 us apart", 1),
                                 ("decode", 1), ("decode", 4))
        for arm in ("ungated", "gated")
    ]  # fmt: skip
    assert all(row.native_median_ns > 1000 for row in rows)  # the driver's own launch
    assert all(row.added_low_ns <= row.added_median_ns <= row.added_high_ns for row in rows)
    assert [row.kinds for row in rows] == [1] * 4 + [200] * 4
    table = singly.figures(rows)
    assert table[1].what == "launch back to back, gated (99 %): added median"
    assert [figure.aim for figure in table] == [
        "<= 53 ns (HAMi-core's)",
        "<= 67 ns (HAMi-core's)",
        "<= 268 ns (HAMi-core's)",
        "<= 381 ns (HAMi-core's)",
        *["<= 60 ns", "<= 150 ns"] * 2,
    ]


def test_costs_that_grids_modules_and_shared_memory_leave_behind_are_measured_in_one_process() -> (
    None
):
    counts = {"grids": 2000, "modules": 50, "shares": 20}
    rows = stays.run(rounds=1, calls=200, counts=counts)
    assert [(row.after, row.wanted, row.reached) for row in rows] == [
        ("new grids", 2000, 2000),
        ("unloaded modules", 50, 50),
        ("shared allocations", 20, 20),
    ]
    assert all(row.before_ns > 1000 and row.after_ns > 1000 for row in rows)
    assert all(row.native_step_ns > 1000 for row in rows)
    for row in rows:
        assert row.stays_ns == pytest.approx(row.growth_ns - row.native_growth_ns)


def test_measuring_costs_that_stay_is_bounded_in_time_and_says_how_far_it_got() -> None:
    (row,) = stays.run(rounds=1, calls=200, counts={"grids": 1_000_000}, seconds=0.2)
    assert 0 < row.reached < 1_000_000
    (figure,) = stays.figures([row])
    assert not figure.reached
    assert f"after {row.reached:,}" in figure.measured


@pytest.mark.parametrize(
    "cell", [Cell(90, 2, "threads"), Cell(90, 2, "processes"), Cell(90, 1, "streams")]
)
def test_ranks_that_meet_are_measured_undisturbed_and_after_one_was_held_up(cell: Cell) -> None:
    rows = collectives.run(cells=[cell], hold_ups_s=[0.03], long_cells=[], seconds=0.3)
    wanted = [0] if cell.ranks == "streams" else [0, 30]
    assert [row.held_up_ms for row in rows] == wanted[: len(rows)]
    assert len(rows) == len(wanted) or not rows[-1].ended
    assert all(bool(row.recovered_ms) == bool(row.held_up_ms) for row in rows)
    for row in rows:
        assert (row.devices, row.ranks, row.quota) == (cell.devices, cell.ranks, cell.quota)
        assert 20 < row.full_steps_per_s < 200  # 5 ms of kernels each
        assert row.steps >= row.wanted_steps or not row.ended
        assert 0 <= row.busiest_percent <= 101
        assert row.of_quota_percent == pytest.approx(
            100 * row.steps_per_s / (0.9 * row.full_steps_per_s), rel=0.05
        )


def test_ranks_that_never_meet_end_in_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first hold-up does not end: a measurement without steps.
    monkeypatch.setattr(collectives._Team, "hold_up", lambda self, _: self._page.hold(0, 600))
    monkeypatch.setattr(collectives, "RECOVERY_S", 0.1)
    rows = collectives.run(cells=[Cell(90, 2, "threads")], hold_ups_s=[0.03, 1], seconds=0.2)
    assert [row.ended for row in rows] == [True, False]  # and no third
    assert rows[1].steps < rows[1].wanted_steps
    assert f"not ended in {rows[1].bound_s:g} s" in collectives.figures(rows)[1].measured


COLLECTIVE = CollectiveRow(2, "threads", 50, 0, 0, 190, 80, 84, 51, True, 80, 80, 2.5, 1)


@pytest.mark.parametrize(
    ("change", "reached"),
    [
        ({}, True),
        ({"of_quota_percent": 79.0}, False),
        ({"ended": False}, False),
    ],
)
def test_ranks_that_meet_reach_their_aim_or_miss_it(
    *, change: dict[str, float], reached: bool
) -> None:
    assert collectives.reached(replace(COLLECTIVE, **change)) is reached  # type: ignore[arg-type]
    share, excess = collectives.figures([COLLECTIVE, replace(COLLECTIVE, **change)])  # type: ignore[arg-type]
    assert share.reached is reached
    assert excess.reached


def test_ranks_that_use_more_than_their_grant_are_no_success() -> None:
    share, excess = collectives.figures([COLLECTIVE, replace(COLLECTIVE, busiest_percent=54.0)])
    assert share.reached
    assert not excess.reached
    assert "+4.0" in excess.measured


def test_every_quota_meets_on_every_number_of_devices_and_in_both_ways() -> None:
    cells = collectives.CELLS
    for devices in (1, 2, 4, 8):
        assert {c.quota for c in cells if c.devices == devices} == set(collectives.QUOTAS)
    for ranks in ("threads", "processes"):
        assert {c.devices for c in cells if c.ranks == ranks} == {2, 4, 8}


def test_a_quota_is_measured_beside_busy_loops_that_all_end() -> None:
    before = os.sched_getaffinity(0)
    (row,) = starved.run(quotas=[30], workloads=[Workload(kernel_us=2000)], loops=2, seconds=1.3)
    assert (row.quota, row.loops, row.processors) == (30, 2, min(2, len(before)))
    assert row.windows > 0
    assert row.mean_error_points <= row.worst_error_points
    assert -30 <= row.bias_points <= 70
    assert 0 < row.full_percent <= 101
    assert os.sched_getaffinity(0) == before
    assert not [folder for folder in Path("/proc").glob("[0-9]*") if is_our_loop(folder)]
    (figure,) = starved.figures([row])
    assert figure.reached is (row.mean_error_points <= starved.WITHIN_POINTS)


def is_our_loop(folder: Path) -> bool:
    try:
        parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        return parent == os.getpid() and starved.SPIN.encode() in (folder / "cmdline").read_bytes()
    except OSError:
        return False


ROW = QuotaRow(30, 2000, "plain", 1, 0, 0.1, 0.2, 0.0, 0.0, 0.5, 10)


@pytest.mark.parametrize(
    ("change", "reached"),
    [({}, True), ({"mean_error_points": 0.61}, False), ({"mean_error_points": 0.59}, True)],
)
def test_a_row_of_the_table_is_reached_only_when_every_cell_is_within(
    *, change: dict[str, float], reached: bool
) -> None:
    # 2 ms kernels: 0.5 + 2/20 points
    figure = figures._mean([ROW, replace(ROW, **change)])  # type: ignore[arg-type]
    assert figure.reached is reached
    assert figure.runs == f"{1 + reached} of 2 cells within"


def test_a_row_names_each_cell_whose_windows_after_a_change_miss_the_aim() -> None:
    bad = replace(ROW, settled_error_points=47.8, sync_every=1, processes=4)
    figure = figures._settle([ROW, bad], "launch and wait")
    assert not figure.reached
    assert "47.80 (30 %, 2000 us plain waited for x4)" in figure.measured
    assert figure.what.endswith("launch and wait")


def test_bias_is_judged_by_its_size_whichever_way_it_goes() -> None:
    for bias in (-5.58, 5.58):
        assert not figures._bias([ROW, replace(ROW, bias_points=bias)], "over 5 s").reached
    assert figures._bias([ROW, replace(ROW, bias_points=-0.29)], "over 5 s").reached


def first_calls(neighbours: int, added_us: float) -> start.StartRow:
    return start.StartRow(
        "first calls", neighbours, 1000, added_us, added_us - 50, added_us + 50, 9
    )


@pytest.mark.parametrize(
    ("without", "beside", "reached"),
    [(100, 120, True), (100, 700, False), (100, 5100, False), (5100, 100, False)],
)
def test_first_calls_that_take_longer_beside_neighbours_grow(
    *, without: float, beside: float, reached: bool
) -> None:
    rows = [replace(first_calls(0, 1), what="no gpu"), first_calls(100, beside)]
    figure = figures._starts([*rows, first_calls(0, without)])[1]
    assert figure.reached is reached


def test_memory_beyond_the_limit_by_the_devices_own_record_is_no_success() -> None:
    good = memory.MemoryRow(8, 1000, 1000, 1000, 9, 9, 4, 0, 0.6)
    assert figures._memory(good).reached
    for name in ("peak_ledger_bytes", "peak_device_bytes"):
        assert not figures._memory(replace(good, **{name: 1001})).reached  # type: ignore[arg-type]


def test_every_kept_result_and_the_output_of_bench_is_json_that_any_reader_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON (RFC 8259)")

    files = list((BENCH / "results").glob("*.json"))
    assert len(files) > 3
    for file in files:
        json.loads(file.read_text(), parse_constant=refuse)

    def measured(**_: object) -> Report:
        report = Report(machine_facts("h200"))
        report.details["backlogged"] = [asdict(replace(ROW, settle_ms=settle_ms))]
        return report

    monkeypatch.setattr(figures, "run", measured)
    settle_ms: float | None = None  # as of a use that did not settle
    command_line("bench")(["bench", "-o", "json"], standalone_mode=False)
    told = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert told["details"]["backlogged"][0]["settle_ms"] is None
    settle_ms = float("inf")
    with pytest.raises(ValueError, match="JSON compliant"):
        command_line("bench")(["bench", "-o", "json"], standalone_mode=False)


def test_all_pairs_of_values_occur_among_the_backlogged_cells() -> None:
    seen = {(q, w.kernel_us, w.launch, w.processes) for q, w in figures._backlogged()}
    values = [set(column) for column in zip(*seen, strict=True)]
    for first in range(4):
        for second in range(first):
            pairs = {(cell[first], cell[second]) for cell in seen}
            assert len(pairs) == len(values[first]) * len(values[second])


def test_the_table_prints_as_markdown_and_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(**_: object) -> Report:
        return Report(machine_facts("h200"), [Figure("a", "<= 1", "2", "3 runs", reached=False)])

    monkeypatch.setattr(figures, "run", measured)
    command_line("bench")(["bench"], standalone_mode=False)
    assert "| a | <= 1 | 2 | 3 runs | **no** |" in capsys.readouterr().out
    command_line("bench")(["bench", "-o", "json"], standalone_mode=False)
    report = json.loads(capsys.readouterr().out)
    assert report["figures"][0]["reached"] is False
    assert report["machine"]["device"] == "simulated NVIDIA H200"


SINGLY = singly.SinglyRow(
    "decode", "gated", 99, 200, 4, 1880, 140, 110, 470, 300, 150, 9, 20000, 3.9
)
STAYS = stays.StaysRow("new grids", 10**6, 359311, 1953, 63805, -20, 6e4, 6e4, 2e4, 8e4, 1873,
                       99367, 3, 3.1)  # fmt: skip
STARVED = starved.StarvedRow(50, 200, 1, 1, 16, 2, 31.4, 31.4, 22.1, 24, -22, 54, 17.7)


def test_the_page_shows_every_measurement_that_a_run_has_and_no_table_without_rows() -> None:
    spec = importlib.util.spec_from_file_location("page", BENCH / "page.py")
    assert spec
    assert spec.loader
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    told = Report(machine_facts("h200"), [Figure("a", "<= 1", "2", "3 runs", reached=False)])
    held = replace(COLLECTIVE, held_up_ms=30, ended=False, steps=3)
    rows = {"singly": [SINGLY], "stays": [STAYS], "collectives": [COLLECTIVE, held],
            "starved": [STARVED]}  # fmt: skip
    told.details = {name: [asdict(row) for row in some] for name, some in rows.items()}
    text = page.figures(asdict(told))
    for title in ("Launches that come singly", "Costs that stay", "Ranks that meet",
                  "Short of processors"):  # fmt: skip
        assert f"### {title}" in text
    assert "### Backlogged" not in text
    assert "| 359,311 of 1,000,000 new grids |" in text
    assert "**not in 2.5 s** (3 of 80 steps)" in text
    assert set(rows) <= {name for name, *_ in page.SECTIONS}


def test_an_unknown_profile_is_refused_before_anything_is_measured() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "bench", "--simulate", "nope"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "nope" in done.stderr
    assert not done.stdout
