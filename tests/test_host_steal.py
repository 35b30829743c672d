"""A timed test runs again if the host took the processors away, and only then."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.support import host_steal

CONFTEST = """
import itertools
from tests.support import host_steal
turn = itertools.count()
host_steal.ticks = lambda: host_steal.Ticks(STOLEN * (at := next(turn)), 100 * at)
def pytest_configure(config):
    config.addinivalue_line("markers", "timed: keeps time")
    config.pluginmanager.register(host_steal)
def pytest_terminal_summary(terminalreporter):
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            print(*[line for _, line in report.user_properties], sep="\\n")
"""
TEST = """
from pathlib import Path
import pytest
@pytest.fixture
def fresh():
    return []
MARK
def test_one(fresh):
    assert not fresh
    fresh.append(1)
    with Path("runs").open("a") as runs:
        runs.write("x")
    assert Path("runs").stat().st_size >= WANTED
"""


TIMED = "@pytest.mark.timed"


def measured(folder: Path, *, stolen: int, wanted: int, mark: str = TIMED) -> str:
    """The output of pytest for a test that passes on its run number `wanted`."""
    (folder / "conftest.py").write_text(CONFTEST.replace("STOLEN", str(stolen)))
    text = textwrap.dedent(TEST).replace("MARK", mark).replace("WANTED", str(wanted))
    (folder / "test_it.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", f"--rootdir={folder}", folder],
        cwd=folder, env={"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("how", "runs", "outcome"),
    [
        ({"stolen": 30, "wanted": 3}, 3, "1 passed"),
        ({"stolen": 30, "wanted": 4}, 3, "1 failed"),
        ({"stolen": 30, "wanted": 1}, 1, "1 passed"),
        ({"stolen": 4, "wanted": 2}, 1, "1 failed"),
        ({"stolen": 30, "wanted": 2, "mark": ""}, 1, "1 failed"),
    ],
    ids=["held up", "still wrong", "right at once", "not held up", "keeps no time"],
)
def test_a_failure_counts_unless_the_host_held_the_machine_up(tmp_path, how, runs, outcome):
    said = measured(tmp_path, **how)
    assert outcome in said, said
    assert (tmp_path / "runs").stat().st_size == runs
    assert len(re.findall(r"test_one: 30% of the processors' time, run \d", said)) >= runs - 1


def test_the_kernels_own_figures_are_read():
    before = host_steal.ticks()
    sum(range(10**6))
    after = host_steal.ticks()
    assert 0 <= before.stolen <= before.wanted <= after.wanted
    assert 0 <= host_steal.share_stolen(before, after) <= 1
