"""Each measurement runs on the real parts and tells what it is to tell.

No figure is judged here: that is what `penstock bench` is for.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from penstock.bench import calls, figures, memory, quota, start, suspend, tenants
from penstock.bench.figures import Figure, Report
from penstock.bench.machine import machine_facts
from penstock.bench.quota import QuotaRow, Workload
from penstock.cli.app import command_line

pytestmark = pytest.mark.timed


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


def test_an_unknown_profile_is_refused_before_anything_is_measured() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "bench", "--simulate", "nope"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "nope" in done.stderr
    assert not done.stdout
