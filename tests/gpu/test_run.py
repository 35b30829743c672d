"""The suite as people start it, in its small form on the simulated GPU, and cut short."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.gpu import children, sections
from tests.gpu.budget import MORE, SHARES, Budget, Check
from tests.gpu.conditions import pairs_of
from tests.gpu.preflight import OnlyOne
from tests.gpu.reading import read_report
from tests.gpu.sections import coverage
from tests.gpu.sections.compute import CELLS

from penstock.model import PenstockError

REPOSITORY = Path(__file__).parents[2]
LONGEST_S = 120


def start(out: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.gpu", "--small", "--simulate", "h200", f"--out={out}"]
    return subprocess.Popen(
        [*command, *words],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def only_report(out: Path) -> dict:
    [path] = out.glob("gpu-*.json")
    return read_report(path)


def planned(*names: str) -> set[tuple[str, str]]:
    return {(one.section, one.name) for one in sections.checks() if one.section in names}


def test_a_small_run_measures_what_can_be_measured_and_says_what_cannot(tmp_path):
    names = ("compatibility", "memory", "suspend")
    parts = ["driver API", "cuda.core", "eager", "process", "NVML", "200 us", "checkpoint"]
    words = [f"--sections={','.join(names)}", *(f"--only={part}" for part in parts)]
    with start(tmp_path, "--seconds=110", *words) as run:
        said, _ = run.communicate(timeout=LONGEST_S)
    report = only_report(tmp_path)
    rows = {(row["section"], row["name"]): row for row in report["rows"]}
    assert report["state"] == "complete", said
    assert set(rows) == {key for key in planned(*names) if any(p in key[1] for p in parts)}
    assert all(row["simulated"] for row in report["rows"])
    assert report["facts"]["simulated"]
    assert report["facts"]["device"].startswith("simulated")
    for name in ("driver API in C, matrix product", "cuda.core"):
        assert rows["compatibility", name]["status"] == "measured", rows["compatibility", name]
    assert rows["compatibility", "PyTorch training, eager"]["status"] == "not here"
    assert rows["memory", "one process takes all it can"]["reached"], said
    assert rows["memory", "racing processes, then kill -9"]["figures"]["left_bytes"] == 0
    assert rows["suspend", "gate, kernels of 200 us"]["status"] == "measured", said
    assert rows["suspend", "driver checkpoint and restore"]["reached"], said
    [page] = tmp_path.glob("gpu-*.md")
    text = page.read_text()
    assert all(row["name"] in text for row in report["rows"])
    assert "**Every row marked `simulated`" in text
    bad = [r for r in report["rows"] if r["status"] in ("failed", "hung", "differs")]
    assert not bad
    assert run.returncode == int(any(row["reached"] is False for row in report["rows"]))


@pytest.mark.parametrize(
    ("number", "state"), [(signal.SIGTERM, "cut by SIGTERM"), (signal.SIGKILL, "running")]
)
def test_a_run_that_is_ended_leaves_a_whole_report_of_all_rows(tmp_path, number, state):
    with start(tmp_path, "--seconds=300", "--sections=assumptions") as run:
        give_up = time.monotonic() + 60
        while time.monotonic() < give_up:
            found = list(tmp_path.glob("gpu-*.json"))
            if found and sum(row["status"] != "cut" for row in only_report(tmp_path)["rows"]) > 2:
                break
            time.sleep(0.05)
        os.kill(run.pid, number)
        said, _ = run.communicate(timeout=30)
    report = only_report(tmp_path)
    done = [row for row in report["rows"] if row["status"] != "cut"]
    assert report["state"] == state, said
    assert run.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert {(row["section"], row["name"]) for row in report["rows"]} == planned("assumptions")
    assert 2 < len(done) < len(report["rows"])
    give_up = time.monotonic() + 20  # the machine's holder sees the end of its pipe
    while children.session_members(run.pid) and time.monotonic() < give_up:
        time.sleep(0.05)
    assert not children.session_members(run.pid)


def test_a_run_without_time_measures_nothing_and_says_so_for_every_row(tmp_path):
    with start(tmp_path, "--seconds=1") as run:
        said, _ = run.communicate(timeout=60)
    report = only_report(tmp_path)
    assert report["state"] == "cut: the time was over", said
    assert {row["status"] for row in report["rows"]} == {"cut", "not here"}  # that takes no time
    assert {(r["section"], r["name"]) for r in report["rows"]} == planned(*SHARES)
    assert run.returncode == 0


def test_each_section_has_its_share_and_what_is_left_goes_to_those_that_wait():
    clock = [0.0]
    checks = [
        Check(section, f"{section} {number}", None, 10, 20)
        for section in SHARES
        for number in range(6)
    ]
    budget = Budget(200, now=lambda: clock[0], spare_s=0)
    run: list[tuple[str, float]] = []
    for slot in budget.slots(checks):
        run.append((slot.check.name, clock[0]))
        assert slot.deadline <= 200
        clock[0] += 10
    assert {name.split()[0] for name, _ in run} >= {"compatibility", "memory", "compute", "cost"}
    firsts = [name for name, _ in run if name.endswith(" 0")]
    assert firsts == [f"{s} 0" for s in SHARES if f"{s} 0" in firsts]  # in the order of their worth
    assert clock[0] == 200  # nothing was left unused
    assert len({name for name, _ in run}) == len(run) == 20


def test_a_check_that_takes_too_long_takes_nothing_from_the_end_of_the_run():
    clock = [0.0]
    checks = [Check("memory", "slow", None, 5, 500), Check("compute", "next", None, 5, 500)]
    slots = Budget(60, now=lambda: clock[0], spare_s=0).slots(checks)
    slow = next(slots)
    assert slow.is_short
    assert slow.deadline < 60
    clock[0] = slow.deadline
    assert next(slots).check.name == "next"


def test_time_that_is_left_goes_to_more_cells_and_none_runs_over_the_end():
    clock = [0.0]
    more = (Check(MORE, f"more {number}", None, 8, 90) for number in itertools.count(1))
    run = []
    for slot in Budget(60, lambda: clock[0], spare_s=0).slots(
        [Check("compute", "planned", None, 10, 20)], more
    ):
        run.append(slot.check.name)
        clock[0] += 10
    assert run == ["planned", "more 1", "more 2", "more 3", "more 4", "more 5"]


def test_the_cells_that_a_run_begins_with_are_counted_as_what_they_are():
    assert [cell.pairs() for cell in coverage.had()] == [pairs_of(*cell) for cell in CELLS]


def test_more_cells_bring_every_pair_of_conditions_once_and_then_come_again():
    seen = {pair for cell in coverage.had() for pair in cell.pairs()}
    assert not coverage.all_pairs() <= seen
    names: list[str] = []
    for check in coverage.more_checks():
        if check.name.endswith(", run 2"):
            break
        assert check.pairs - seen  # it brings something
        seen |= check.pairs
        names.append(check.name)
    assert coverage.all_pairs() <= seen
    assert len(set(names)) == len(names) < 40
    assert all(sum(cell.granted()) < 100 for cell in coverage.cells())


def test_a_killed_run_leaves_nothing_that_it_started(tmp_path):
    folder = tmp_path / "its files"
    folder.mkdir()
    program = tmp_path / "run.py"
    program.write_text(KILLED)
    with subprocess.Popen(
        [sys.executable, str(program), str(folder)], cwd=REPOSITORY, stdout=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    ) as run:  # fmt: skip
        assert run.stdout is not None
        session, other = (int(word) for word in run.stdout.readline().split())
        assert children.session_members(session)
        run.kill()
    give_up = time.monotonic() + 20
    there = [session, other]
    while (any(map(children.session_members, there)) or folder.exists()) and (
        time.monotonic() < give_up
    ):
        time.sleep(0.05)
    assert not any(map(children.session_members, there))
    assert not folder.exists()


KILLED = """
import os, sys, time
from pathlib import Path
from tests.gpu.children import Child, Command
from tests.gpu.keeper import Keeper
script = "setsid sleep 600 & echo $!; echo ready; sleep 600"
with Keeper(Path(sys.argv[1])), Child(Command(["sh", "-c", script], dict(os.environ))) as child:
    child.wait_for_line("ready", 20)
    print(child.process.pid, int(child._said.split()[0]), flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seconds=soon"], "'soon' is no number of seconds"),
        (["--seconds=nan"], "'nan' is no number of seconds"),
        (["--only=no such row"], "no row of"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_reason_and_leaves_no_report(tmp_path, words, said):
    with start(tmp_path, *words) as run:
        out, _ = run.communicate(timeout=LONGEST_S)
    assert run.returncode == 2
    assert said in out
    assert not list(tmp_path.glob("gpu-*"))


def test_a_driver_that_does_not_answer_is_not_taken_for_none(tmp_path):
    source, library = tmp_path / "cuda.c", tmp_path / "libcuda.so.1"
    source.write_text("int cuInit(unsigned flags) { return flags ? 1 : 999; }")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu", f"--out={tmp_path / 'out'}", "--seconds=20"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=LONGEST_S,
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 2
    assert "libcuda.so.1 is here, and NVML lists no device" in done.stderr
    assert "--simulate h200" in done.stderr
    assert not (tmp_path / "out").exists()


def test_two_runs_on_a_real_device_do_not_measure_each_other(tmp_path):
    with (
        OnlyOne(tmp_path),
        pytest.raises(PenstockError, match=f"pid {os.getpid()}"),
        OnlyOne(tmp_path),
    ):
        pass
    with OnlyOne(tmp_path):
        pass
