"""Four simulated nodes, a real manager, real agents: urgent work takes a card and gives it back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.agent.conftest import wait_until
from tests.pool_nodes.support import namespaces

KILLS = int(os.environ.get("PENSTOCK_POOL_KILLS", "6"))


def test_the_suspended_release_their_memory_go_on_later_and_compute_what_they_would_have(tmp_path):
    found = namespaces.run("preemption", tmp_path / "pool", 150)
    assert found["free_before_bytes"] < 2 << 20  # the card's memory was full
    assert found["held_by_the_suspended_bytes"] == 0
    assert found["phases"] == {"low-1": "suspended", "low-2": "suspended", "urgent": "running"}
    assert max(found["steps_when_stopped"]) < 2000  # they were in the middle of it
    assert [one["digest"] for one in found["results"]] == [
        one["digest"] for one in found["undisturbed"]
    ]
    # The whole of the card was there for the urgent one.
    held = sum(one["held_bytes"] for one in found["results"])
    assert found["urgent"]["held_bytes"] >= held


def test_nothing_is_given_twice_or_lost_when_the_manager_and_an_agent_are_killed(tmp_path):
    timeout_s = 120 + 15 * KILLS
    found = namespaces.run("kills", tmp_path / "pool", timeout_s, kills=KILLS, seed=KILLS)
    assert sum(found["killed"].values()) >= KILLS
    assert found["looks"] > KILLS
    assert found["faults"] == []
    assert [one["digest"] for one in found["results"]] == [
        one["digest"] for one in found["undisturbed"]
    ]
    assert len({one["digest"] for one in found["urgent"]}) == 1


def test_nothing_is_left_when_the_test_that_started_the_nodes_is_killed(tmp_path):
    """A process starts the nodes as a test does, and is killed."""
    folder = tmp_path / "pool"
    code = (
        "import sys, time; from pathlib import Path; from tests.pool_nodes.support import "
        f"namespaces; namespaces.start('idle', Path({str(folder)!r})); time.sleep(600)"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], cwd=namespaces.PROJECT)
    try:
        wait_until((folder / "up").exists, 90)
        assert len(_processes_of(folder)) >= 5  # the manager and four agents
    finally:
        starter.send_signal(signal.SIGKILL)
        starter.wait()
    wait_until(lambda: not _processes_of(folder), 20)
    time.sleep(0.1)
    bridges = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
    assert "lan:" not in bridges


def _processes_of(folder: Path) -> list[str]:
    """Command lines that name a file of the folder, but for this process's children's own."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"{folder}/" in line and "penstock" in line and "time.sleep(600)" not in line:
            found.append(line)
    return found
