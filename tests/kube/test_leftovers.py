"""Whatever happens to whoever starts a cluster, nothing of it stays behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.kube.cluster import NotToBeHadError, layout, programs, running
from tests.kube.waiting import until

pytestmark = pytest.mark.kube

UP = """
import sys
from pathlib import Path
from tests.kube.cluster import running
running.up(Path(sys.argv[1]))
"""


def _namespaces(pid: int) -> set[str]:
    return {str(os.readlink(link)) for link in Path(f"/proc/{pid}/ns").iterdir()}


def _all_namespaces() -> set[str]:
    found: set[str] = set()
    for pid in psutil.pids():
        try:
            found |= _namespaces(pid)
        except OSError:
            continue
    return found


def _traces(state: Path) -> list[str]:
    """Whatever this machine still knows of the cluster in that directory."""
    found = [str(state)] if state.exists() else []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(state) in line and process.pid != os.getpid():
            found.append(line)
    found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(state) in line]
    name = layout.cgroup(state).name
    found += [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/{name}")]
    return found


def test_a_killed_start_is_taken_up_and_down_leaves_nothing(cluster, tmp_path):
    """`cluster` is only there so that a second one has to keep out of its way."""
    state = tmp_path / "second"
    starter = subprocess.Popen([sys.executable, "-c", UP, state], stderr=subprocess.PIPE)
    until("its keeper runs", lambda: (state / "keeper").exists() and (state / "keeper").read_text())
    time.sleep(1)  # wherever it is now
    starter.kill()
    starter.communicate()
    half = running.services(layout.load(state))
    assert "keeper" in half
    second = running.up(state)
    assert second.nodes_ready() == set(layout.NODES)
    ran = running.services(second.layout)
    second.close()
    own = set().union(*(_namespaces(process.pid) for process in ran.values()))
    own -= _namespaces(os.getpid())
    assert len(own) > 10  # of three nets, mounts, process trees, …
    running.down(state)
    assert _traces(state) == []
    assert not own & _all_namespaces()
    assert not [process for process in ran.values() if process.is_running()]
    running.down(state)  # nothing is there, and nothing is done
    assert cluster.nodes_ready() == set(layout.NODES)


def test_who_is_not_root_is_told_so(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotToBeHadError, match="needs root"):
        running.up(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_program_that_does_not_build_is_told_with_the_compilers_words(monkeypatch, tmp_path):
    monkeypatch.setattr(programs, "KEPT", tmp_path)
    wrong = programs.Program("wrong", "runtime", "github.com/opencontainers/runc/no-such-package")
    monkeypatch.setattr(programs, "PROGRAMS", (wrong,))
    with pytest.raises(NotToBeHadError, match="wrong was not built: .*no-such-package"):
        programs.build()
    assert not [path for path in tmp_path.glob("*/*")]
