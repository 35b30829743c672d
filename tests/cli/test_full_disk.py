"""A full state directory is reported before anything starts, and ends no program later.

A small tmpfs is the full disk; only root can mount one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import wait_until

WORKER = Path(__file__).with_name("support") / "gpu_worker.py"


@pytest.fixture
def disk(penstock):
    """Mounts a tmpfs of that size as the state directory."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    penstock.state.mkdir()

    def mounted(size: str) -> Path:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", penstock.state],
            check=True,
        )
        return penstock.state

    yield mounted
    for process in penstock.started:
        process.kill()
        process.wait()
    subprocess.run(["umount", penstock.state], check=False)


def start_worker(penstock, *options):
    """A worker as the tenant t, with its context made; it reads commands."""
    process = penstock.start(
        "--name=t", *options, "--", sys.executable, str(WORKER), stdin=subprocess.PIPE
    )
    assert process.stdout.readline() == "ready\n"
    return process


def fill(folder: Path) -> None:
    subprocess.run(
        ["dd", "if=/dev/zero", f"of={folder}/fill", "bs=4k"], capture_output=True, check=False
    )
    assert os.statvfs(folder).f_bavail == 0


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ("64k", "cannot make the simulated machine"),
        ("900k", "cannot make the simulated machine"),
        ("2500k", "cannot make the simulated machine"),
        ("4900k", "No space left on device; free up disk space"),
    ],
)
def test_a_tenant_without_room_for_its_pages_is_refused_and_leaves_nothing(
    penstock, disk, tmp_path, size, words
):
    folder = disk(size)
    refused = penstock.run("--", "touch", str(tmp_path / "started"))
    assert refused.returncode == 2
    assert words in refused.stderr
    assert "No space left on device" in refused.stderr
    assert "free up disk space" in refused.stderr
    assert not (tmp_path / "started").exists()
    assert penstock.tenants() == []
    assert list(folder.rglob(".*")) == []
    if words.startswith("cannot make"):
        assert list((folder / "machines").iterdir()) == []


def test_a_disk_that_fills_up_later_kills_neither_programs_nor_supervisor(penstock, disk):
    folder = disk("16m")
    process = start_worker(penstock)
    fill(folder)
    for command, answer in (("load 2", "ok"), ("alloc 64", "ok"), ("free", "ok")):
        process.stdin.write(command + "\n")
        process.stdin.flush()
        assert process.stdout.readline().strip() == answer
    # Another process finds no room for what the device keeps of it: an answer of the driver's.
    process.stdin.write(f"fork {sys.executable} {WORKER} </dev/null\n")
    process.stdin.flush()
    assert process.stdout.readline().strip() == "CUDA_ERROR_OUT_OF_MEMORY"
    (row,) = penstock.ps()
    assert row["supervised"]
    assert len(row["processes"]) == 1
    process.stdin.close()
    assert process.wait(30) == 0
    assert penstock.tenants() == []


def test_the_exit_code_of_a_command_that_filled_the_disk_is_passed_on(penstock, disk):
    folder = disk("16m")
    done = penstock.run(
        "--", "sh", "-c", f"dd if=/dev/zero of={folder}/fill bs=64k; sleep 1; exit 7"
    )
    assert done.returncode == 7, done.stderr
    assert penstock.tenants() == []


def test_the_supervisor_outlives_pages_that_its_tenant_truncates(penstock):
    directory = penstock.state / "tenants" / "t"
    script = 'cd "$PENSTOCK_TENANT_DIR"; truncate -s 0 quota usage; echo ready; read x; exit 7'
    process = penstock.start("--name=t", "--", "sh", "-c", script, stdin=subprocess.PIPE)
    assert process.stdout.readline() == "ready\n"

    def said() -> set[str]:
        lines = (directory / "events.jsonl").read_text().splitlines()
        return {json.loads(line)["event"] for line in lines}

    wait_until(lambda: "page-lost" in said())
    process.stdin.close()
    assert process.wait(30) == 7
    assert penstock.tenants() == []


def test_the_supervisor_outlives_a_machine_that_its_tenant_truncates(penstock):
    script = "truncate -s 0 $PENSTOCK_SIM_MACHINE; sleep 2.5; exit 7"
    done = penstock.run("--name=t", "--", "sh", "-c", script)
    assert done.returncode == 7, done.stderr
    assert penstock.tenants() == []
