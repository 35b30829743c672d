"""The demo: its verdict comes from the device's record, and it can fail."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.bench.demo import PARTS, Ended, Seen, _judge, _window
from penstock.bench.scratch import remove_stale
from penstock.node.tenants.state import locked

from .conftest import alive, wait_until

pytestmark = pytest.mark.timed

NUMBA, CUDA_CORE, C_PROGRAM = PARTS
SECOND = 10**9


def seen(percent, *, peak=1 << 30, seconds=20):
    """A program that used `percent` of the device, sampled four times a second."""
    step = SECOND // 4
    samples = [(i * step, i * step * percent // 100) for i in range(1, seconds * 4)]
    return Seen(busy=samples, peak_bytes=peak)


def ended(part, *, exit_code=0, refusals=0, output=""):
    return Ended(part, exit_code, output, refusals)


WINDOW = (2 * SECOND, 18 * SECOND)


def test_a_program_that_got_its_share_is_within_bounds():
    outcome = _judge(ended(NUMBA), seen(70), WINDOW, 3.0)
    assert outcome.faults == ()
    assert outcome.cores_percent == pytest.approx(70, abs=0.1)


@pytest.mark.parametrize(
    ("one", "figures", "window", "fault"),
    [
        (ended(NUMBA), seen(74), WINDOW, "points above its quota"),
        (ended(NUMBA), seen(66), WINDOW, "points below its quota"),
        (ended(NUMBA), seen(70, peak=(8 << 30) + 1), WINDOW, "memory 1 bytes above"),
        (ended(NUMBA), seen(70, peak=0), WINDOW, "never seen by the device"),
        (ended(NUMBA), seen(70), (SECOND, 2 * SECOND), "did not work long enough"),
        (ended(NUMBA, exit_code=1), seen(70), WINDOW, "exit code 1"),
        (ended(NUMBA, refusals=2), seen(70), WINDOW, "2 allocations within its quota"),
        (ended(C_PROGRAM, refusals=1), seen(1), WINDOW, "was not refused memory"),
        (ended(C_PROGRAM, output="CUDA_ERROR_OUT_OF_MEMORY"), seen(1), WINDOW, "not refused"),
    ],
)
def test_a_figure_out_of_bounds_is_a_fault(one, figures, window, fault):
    (found,) = _judge(one, figures, window, 3.0).faults
    assert fault in found


def test_a_program_that_is_not_backlogged_may_use_less_than_its_share():
    refused = ended(C_PROGRAM, refusals=1, output="CUDA_ERROR_OUT_OF_MEMORY")
    assert _judge(refused, seen(1), WINDOW, 3.0).faults == ()
    (fault,) = _judge(refused, seen(9), WINDOW, 3.0).faults
    assert "above its quota" in fault


def test_cores_are_judged_only_while_all_backlogged_programs_work():
    late = replace(seen(20))
    late.busy = [(at, 0 if at < 5 * SECOND else busy) for at, busy in late.busy]
    window = _window({"numba": seen(70), "cuda-core": late, "c-program": seen(1)})
    assert window[0] >= 7 * SECOND
    assert window[1] < 20 * SECOND
    assert _window({"numba": seen(70), "cuda-core": Seen(), "c-program": Seen()}) == (0, 0)


def test_the_demo_runs_and_all_programs_are_within_bounds(penstock):
    result = penstock("demo", "--seconds", "14", "--simulate", "h200")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "\nall within bounds\n" in result.stdout
    assert "CUDA_ERROR_OUT_OF_MEMORY" in result.stdout
    assert "\x1b" not in result.stdout
    assert CUDA_CORE.name in result.stdout


def test_a_demo_that_is_ended_leaves_nothing_behind(penstock, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "demo", "--simulate", "h200"],
        env={**penstock.environment, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
    )
    tenants = f"TMPDIR={tmp_path}".encode()
    wait_until(lambda: list(tmp_path.glob("penstock-demo-*/state/tenants/numba")))
    process.terminate()
    assert process.wait(30) == 128 + signal.SIGTERM
    assert list(tmp_path.glob("penstock-demo-*")) == []
    assert not [pid for pid in processes_with(tenants) if alive(pid)]


def processes_with(variable):
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if variable in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def test_leftovers_of_a_killed_demo_are_removed_unless_they_are_in_use(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("left", "held", "young"):
        folder = tmp_path / f"penstock-demo-{name}"
        folder.mkdir()
        (folder / "lock").touch()
        if name != "young":
            os.utime(folder, (1, 1))
    (tmp_path / "penstock-demo-link").symlink_to(tmp_path)
    with locked(tmp_path / "penstock-demo-held" / "lock"):
        remove_stale("penstock-demo-")
    left = sorted(entry.name.rpartition("-")[2] for entry in tmp_path.iterdir())
    assert left == ["held", "link", "young"]


def test_the_numba_example_says_at_once_what_it_does_and_how_far_it_is(penstock):
    example = Path(__file__).parents[2] / "examples" / "numba_tenant.py"
    # No unbuffered output: what a pipe's reader sees is what counts.
    process = penstock.start("--", sys.executable, str(example), "6")
    first = process.stdout.readline()
    said_at = time.monotonic()
    rest = process.stdout.read().splitlines()
    assert first == "numba: SAXPY on 3 x 256 MiB for 6 s\n"
    assert time.monotonic() - said_at > 4  # said before the work, not with its end
    assert rest[0].endswith(" s to go")
    assert rest[-1].endswith("launches in 6 s")
    assert process.wait(30) == 0
