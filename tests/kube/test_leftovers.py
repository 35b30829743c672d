"""Clusters that fail or are killed while they start leave nothing behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.kube.cluster import NotToBeHadError, layout, node, programs, running
from tests.kube.support.waiting import until

pytestmark = pytest.mark.kube


@pytest.fixture(autouse=True)
def _where_there_can_be_one(cluster):
    """Skips these tests, with the reason, where a cluster cannot start."""


UP = """
import sys
from pathlib import Path
from tests.kube.cluster import running
running.up(Path(sys.argv[1]))
"""


def _namespaces(pid: int) -> set[str]:
    try:
        return {str(link.readlink()) for link in Path(f"/proc/{pid}/ns").iterdir()}
    except OSError:  # it ended
        return set()


def _inside(namespaces: set[str]) -> list[psutil.Process]:
    """The processes in one of these namespaces, whose numbers the kernel reuses at once."""
    return [one for one in psutil.process_iter() if _namespaces(one.pid) & namespaces]


def _traces(state: Path) -> list[str]:
    """What is left on this machine of the cluster in that directory."""
    found = [str(state)] if state.exists() else []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(state) in line and process.pid != os.getpid():
            found.append(line)
    found += [
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(state) in line
    ]
    name = layout.cgroup(state).name
    for folder, groups, _ in os.walk("/sys/fs/cgroup"):  # another cluster's may go meanwhile
        found += [f"{folder}/{group}" for group in groups if group == name]
    return found


def _killed_after(state: Path, after_s: float, *, begun: bool = False) -> None:
    """Kills the start of a cluster after `after_s`; with `begun` counted from its first trace."""
    starter = subprocess.Popen([sys.executable, "-c", UP, state], stderr=subprocess.PIPE)
    if begun:
        until("it has begun", state.exists)
    time.sleep(after_s)
    starter.kill()
    starter.communicate()


def _started_and_killed(state: Path) -> dict[str, psutil.Process]:
    """The processes of a cluster whose start was killed half way."""
    starter = subprocess.Popen([sys.executable, "-c", UP, state], stderr=subprocess.PIPE)
    until("its keeper runs", lambda: (state / "keeper").exists() and (state / "keeper").read_text())
    time.sleep(1)  # wherever it is now
    starter.kill()
    starter.communicate()
    return running.services(layout.stored(state))


def test_a_killed_start_is_taken_up_and_down_leaves_nothing(cluster, tmp_path):
    """The fixture `cluster` is here so that there are two clusters at once."""
    settings = [Path("/proc/sys", name) for name in (*node.SYSCTLS, "net/ipv4/ip_forward")]
    before = [setting.read_text() for setting in settings]
    state = tmp_path / "second"
    assert "keeper" in _started_and_killed(state)
    second = running.up(state)
    assert [setting.read_text() for setting in settings] == before
    assert second.nodes_ready() == set(layout.NODES)
    ran = running.services(second.layout)
    second.close()
    own = set().union(*(_namespaces(process.pid) for process in ran.values()))
    own -= _namespaces(os.getpid())
    assert len(own) > 10  # of three nets, mounts, process trees, …
    inside = _inside(own)
    assert {process.pid for process in ran.values()} <= {process.pid for process in inside}
    running.down(state)
    assert _traces(state) == []
    until(  # whoever waits for the first of them has waited: who started it was killed
        "nobody of them is left",
        lambda: not [process for process in inside if process.is_running()],
        within_s=10,
    )
    running.down(state)  # nothing is there, and nothing is done
    assert cluster.nodes_ready() == set(layout.NODES)


def test_a_killed_keeper_takes_all_processes_with_it_and_down_removes_the_rest(tmp_path):
    state = tmp_path / "third"
    ran = _started_and_killed(state)
    ran["keeper"].kill()
    until("nothing of it runs", lambda: not any(p.is_running() for p in ran.values()))
    assert running.services(layout.stored(state)) == {}
    assert _traces(state) != []
    running.down(state)
    assert _traces(state) == []


def test_down_removes_everything_of_a_start_that_was_killed_at_any_moment(tmp_path):
    state = tmp_path / "killed"
    moments = [(after_s, False) for after_s in (0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.9, 1.5)]
    for after_s, begun in [*moments, (0, True), (0.1, True), (1.5, True)]:
        _killed_after(state, after_s, begun=begun)
        assert state.exists() or not begun
        running.down(state)
        assert _traces(state) == [], after_s


def test_removing_the_directory_of_a_cluster_ends_it(tmp_path):
    state = tmp_path / "fourth"
    ran = _started_and_killed(state)
    shutil.rmtree(state, ignore_errors=True)
    until("nothing of it runs", lambda: not any(p.is_running() for p in ran.values()))
    running.down(state)
    assert _traces(state) == []


def test_starting_a_cluster_without_root_is_refused_with_the_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotToBeHadError, match="needs root"):
        running.up(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_cluster_that_does_not_come_up_says_what_ended_and_leaves_only_logs(
    monkeypatch, tmp_path
):
    folder = tmp_path / "programs"
    folder.mkdir()
    for program in programs.build().glob("[a-z]*"):
        (folder / program.name).symlink_to(program)
    (folder / "etcd").unlink()
    (folder / "etcd").write_text("#!/bin/sh\necho no room on device >&2; exit 3\n")
    (folder / "etcd").chmod(0o755)
    monkeypatch.setattr(programs, "build", lambda: folder)
    monkeypatch.setattr(running, "READY_WITHIN_S", 4)
    state = tmp_path / "fifth"
    with pytest.raises(running.ClusterError, match=r"etcd ended with exit code 3: '.*no room on d"):
        running.up(state)
    assert [path.name for path in state.iterdir()] == ["logs"]
    running.down(state)
    assert _traces(state) == []


def test_a_program_that_does_not_build_is_an_error_with_the_compilers_message(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(programs, "KEPT", tmp_path)
    wrong = programs.Program("wrong", "runtime", "github.com/opencontainers/runc/no-such-package")
    monkeypatch.setattr(programs, "PROGRAMS", (wrong,))
    with pytest.raises(NotToBeHadError, match=r"wrong was not built: .*no-such-package"):
        programs.build()
    assert not list(tmp_path.glob("*/*"))
