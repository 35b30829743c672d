"""Reports compared, put into the page, and turned into the figures of the simulated GPU."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.gpu import calibrate, compare, page
from tests.gpu.reading import read_report
from tests.gpu.report import Report
from tests.gpu.rows import Row

from penstock.model import PenstockError
from penstock_shim import paths, profiles, simulator

REPOSITORY = Path(__file__).parents[2]
H200 = Path(profiles.__file__).parent / "h200.yaml"
FACTS = {
    "date": "2026-11-01T10:00:00+00:00", "commit": "abc", "version": "0.1.0", "driver": "580.1",
    "device": "NVIDIA H200, 143771 MiB", "simulated": False,
}  # fmt: skip


def row(name="one", section="cost", **changes):
    known = {"status": "measured", "measured": "1 | 2", "aim": "less", "reached": True,
             "simulated": False, "seconds": 1.0, "figures": {}}  # fmt: skip
    return Row(section, name, **{**known, **changes})


def write_report(base, rows, planned=(), **facts):
    report = Report(base, {**FACTS, **facts}, list(planned), say=lambda _: None)
    for one in rows:
        report.add(one)
    report.end("complete")
    return report.json_path


def test_what_changed_between_two_reports_is_told_and_what_merely_varies_is_not(tmp_path):
    steady = {"launch_ns": 100.0, "mean_error_points": 0.3}
    old = read_report(write_report(tmp_path / "gpu-old", [
        row("a", figures=steady), row("b", status="not here"), row("c"),
        row("d", figures={"launch_ns": 100.0}),
    ]))  # fmt: skip
    new = read_report(write_report(tmp_path / "gpu-new", [
        row("a", figures={"launch_ns": 108.0, "mean_error_points": 0.7}), row("b"),
        row("c", reached=False), row("d", figures={"launch_ns": 150.0}),
        row("e"),
    ]))  # fmt: skip
    assert compare.changes(old, new) == [
        ("cost: b", "status", "not here", "measured"),
        ("cost: c", "reached", "yes", "no"),
        ("cost: d", "launch_ns", "100", "150"),
        ("cost: e", "row", "", "new"),
    ]
    assert compare.changes(new, new) == []
    assert ("cost: e", "row", "there", "gone") in compare.changes(new, old)


def test_the_page_shows_the_newest_real_report_and_what_changed_since_the_one_before(tmp_path):
    results, readme = tmp_path / "results", tmp_path / "README.md"
    write_report(results / "gpu-1", [row("a", figures={"launch_ns": 100.0})])
    second = [row("a", figures={"launch_ns": 200.0})]
    both = [("cost", "a"), ("cost", "never")]
    write_report(results / "gpu-2", second, planned=both, date="2026-11-02T10:00:00+00:00")
    newest = {"date": "2026-11-03T10:00:00+00:00", "device": "simulated NVIDIA H200, 143771 MiB"}
    write_report(results / "gpu-3", [row("a", simulated=True)], simulated=True, **newest)
    readme.write_text(f"by hand\n{page.BEGIN}\nold\n{page.END}\nby hand too\n")
    command = [sys.executable, "-m", "tests.gpu.page", str(readme), str(results)]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    text = readme.read_text()
    assert text.startswith("by hand\n")
    assert text.endswith("by hand too\n")
    assert "old\n" not in text
    assert "results/gpu-2.json" in text
    assert "since `gpu-1.json`" in text
    assert "| cost: a | launch_ns | 100 | 200 |" in text
    assert "1 \\| 2" in text
    assert "| never | cut |" in text
    readme.write_text("no marks")
    assert subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=False).returncode == 2
    assert readme.read_text() == "no marks"
    assert page.BEGIN in (REPOSITORY / "bench" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "text", ["", "[]", '{"report": "other"}', '{"report": "penstock gpu-check"}']
)
def test_what_is_no_report_is_refused_with_the_reason(tmp_path, text):
    path = tmp_path / "gpu-x.json"
    path.write_text(text)
    with pytest.raises(PenstockError, match=r"gpu-x\.json"):
        read_report(path)


COSTS = {
    "profile.launch_ns": 7654.3, "profile.context_mib": 612.4, "profile.host_link_gb_per_s": 53.21,
    "profile.globaltimer_step_ns": 32,
}  # fmt: skip


def test_costs_of_a_real_device_become_what_the_simulated_one_costs(tmp_path):
    report = write_report(
        tmp_path / "gpu-real",
        [row(figures=COSTS), row("cut", status="cut", figures={"profile.query_ns": 1.0})],
    )
    profile = tmp_path / "h200.yaml"
    shutil.copy(H200, profile)
    command = [sys.executable, "-m", "tests.gpu.calibrate", str(report), str(profile)]
    shown = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert "launch_ns: 1800 -> 7654" in shown.stdout
    assert profile.read_text() == H200.read_text()  # it was not asked to write
    for _ in range(2):  # the second time it finds its own words
        subprocess.run([*command, "--write"], cwd=REPOSITORY, capture_output=True, check=True)
    before, after = profiles.load_profile(H200), profiles.load_profile(profile)
    changed = {key for key, value in after.figures.items() if value != before.figures[key]}
    assert changed == {
        "estimates.launch_ns", "estimates.context_mib", "estimates.host_link_gb_per_s",
    }  # fmt: skip
    source = after.sources["estimates"]
    assert source.count("measured (") == 1
    assert "driver 580.1, 2026-11-01, abc" in source
    assert source.endswith(before.sources["estimates"])
    assert measured_launch_ns(tmp_path / "machine", profile) >= 7654


def measured_launch_ns(machine, profile):
    """The figures that the suite's program measures on a simulated device of that profile."""
    simulator.create_machine(machine, str(profile)).close()
    done = subprocess.run(
        [paths.workload_path("penstock-latency"), "200"],
        env=simulator.environment(machine),
        capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    return json.loads(done.stdout)["launch"]["median_ns"]


def test_costs_are_not_taken_from_a_simulated_device_or_another_one_or_beyond_reason(tmp_path):
    profile = profiles.load_profile(H200)

    def taken(**changes):
        figures = changes.pop("figures", COSTS)
        path = write_report(tmp_path / "gpu-x", [row(figures=figures)], **changes)
        return calibrate.calibrated(read_report(path), profile)

    with pytest.raises(PenstockError, match="simulated"):
        taken(simulated=True)
    with pytest.raises(PenstockError, match="profile of NVIDIA H200"):
        taken(device="NVIDIA L4, 23034 MiB")
    with pytest.raises(PenstockError, match="no cost"):
        taken(figures={"mean_error_points": 1.0})
    wild = write_report(tmp_path / "gpu-wild", [row(figures={"profile.launch_ns": 1e12})])
    copy = tmp_path / "h200.yaml"
    shutil.copy(H200, copy)
    words = ["-m", "tests.gpu.calibrate", str(wild), str(copy), "--write"]
    done = subprocess.run(
        [sys.executable, *words], cwd=REPOSITORY, capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"launch_ns" in done.stderr
    assert copy.read_text() == H200.read_text()


def test_two_reports_of_one_second_and_a_full_disk_take_no_row_from_anybody(tmp_path, monkeypatch):
    said: list[str] = []
    first = write_report(tmp_path / "gpu-x", [row("a")])
    second = Report(tmp_path / "gpu-x", FACTS, [], say=said.append)
    second.add(row("b"))
    assert second.json_path != first
    assert [one["name"] for one in read_report(first)["rows"]] == ["a"]
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", no_room)
        second.add(row("c"))
        second.add(row("d"))
    assert "No space left" in second.problem
    assert sum("measuring goes on" in words for words in said) == 1
    assert [one["name"] for one in read_report(second.json_path)["rows"]] == ["b"]
    second.end("complete")
    assert not second.problem
    assert len(read_report(second.json_path)["rows"]) == 3
    assert not list(tmp_path.glob(".gpu-*"))


def no_room(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
