"""Each way round the shim that we know: caught by the device and the kernel, handled by policy."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock_shim import paths

from .conftest import PROGRAM, expect, is_running, state_of

S = 1_000_000_000
STATIC = """
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words) {
  (void)count;
  unsetenv("LD_PRELOAD");
  unsetenv("PENSTOCK_TENANT_DIR");
  execv(words[1], words + 1);
  return 1;
}
"""


@pytest.fixture(scope="session")
def static_launcher(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("static")
    (folder / "launcher.c").write_text(STATIC)
    command = ["cc", "-static", "-o", str(folder / "launcher"), str(folder / "launcher.c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no static program can be built: {done.stderr.splitlines()[-1]}")
    return str(folder / "launcher")


def way(name: str, guest, static_launcher) -> subprocess.Popen[str]:
    """Starts a program of `guest` that takes the device past the shim."""
    words = [sys.executable, str(PROGRAM), "load", "1000", "alloc", "256"]
    lost = {k: v for k, v in guest.environment.items() if k != "LD_PRELOAD"}
    if name == "no preload":
        return guest.start(*words, env=lost)
    if name == "another preload":
        maths = "/lib/x86_64-linux-gnu/libm.so.6"
        return guest.start(*words, env={**guest.environment, "LD_PRELOAD": maths})
    if name == "an emptied environment":
        kept = ("PATH", "LD_LIBRARY_PATH", "PENSTOCK_SIM_MACHINE", "PENSTOCK_SIM_KERNELS")
        bare = [f"{k}={guest.environment[k]}" for k in kept]
        script = 'sleep 1.2; "$@" & wait'  # the tenant's own shell is there for a while
        return guest.start("sh", "-c", script, "sh", "env", "-i", *bare, *words)
    if name == "a static launcher":
        script = 'sleep 1.2; "$@" & wait'
        return guest.start("sh", "-c", script, "sh", static_launcher, *words)
    if name == "an overwritten page":
        return guest.program("alloc", 256, "scribble", "load", 1000)
    assert name == "another fork, another session"
    return guest.program("wait", 1.2, "daemon", "alloc", 256, "load", 1000, env=lost)


WAYS = [
    "no preload",
    "another preload",
    "an emptied environment",
    "a static launcher",
    "an overwritten page",
    "another fork, another session",
]


def offender_of(node, guest):
    """The pid of the tenant's process on the device, told by its figures alone."""
    neighbours = {p.pid for g in node.guests.values() if g is not guest for p in g.programs}
    for record in node.simulated.record(0):
        if record.alive and record.pid not in neighbours and record.memory_bytes > 1 << 28:
            return record.pid, record.began_ns
    return None


@pytest.mark.parametrize("name", WAYS)
def test_it_is_stopped_within_three_seconds_and_ended_after_the_grace(node, static_launcher, name):
    neighbour = node.tenant("neighbour", cores=300)
    well_behaved = neighbour.launcher("--kernel-us", 300, "--seconds", 60, "--sync-every", 10)
    guest = node.tenant("t", cores=300, measured="terminate", grace_s=2)
    node.watch_for(1)
    way(name, guest, static_launcher)
    pid, began_ns = node.watch(lambda: offender_of(node, guest))
    node.late_ns = 0
    event = node.watch(lambda: guest.events("suspend"))[0]
    took_ns = node.looks[-1] - began_ns
    assert took_ns < 3 * S + node.late_ns
    assert event["processes"][0]["pid"] == pid
    assert event["kind"] in {"uncharged", "damaged"}
    node.watch(lambda: not is_running(pid))
    assert [e["event"] for e in guest.acts()][:2] == ["suspend", "terminate"]
    assert neighbour.acts() == []
    assert well_behaved.poll() is None


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ("deny", ["exceeded"]),
        ("throttle", ["throttle"]),
        ("suspend", ["suspend"]),
        ("terminate", ["suspend", "terminate"]),
    ],
)
def test_the_policy_says_how_far_it_goes(node, static_launcher, measured, expected):
    guest = node.tenant("t", measured=measured, grace_s=1.5)
    process = way("no preload", guest, static_launcher)
    node.watch(lambda: len(guest.acts()) >= len(expected))
    node.watch_for(3)
    assert [e["event"] for e in guest.acts() if e["event"] != "restored"] == expected
    assert state_of(process.pid) == {"suspend": "T", "terminate": "Z"}.get(
        measured, state_of(process.pid)
    )
    if measured == "throttle":
        assert guest.limits.devices[0].cores_permille == 150
    if measured in {"deny", "throttle"}:
        assert state_of(process.pid) in {"S", "R"}


def test_the_tenants_other_processes_run_on(node, static_launcher):
    guest = node.tenant("t", grace_s=1.5)
    honest = guest.program("alloc", 100, "load", 100)
    expect(honest, "alloc 0")
    process = way("no preload", guest, static_launcher)
    node.watch(lambda: process.poll() is not None)
    assert process.returncode == -15
    node.watch(lambda: guest.events("restored"))
    assert honest.poll() is None
    assert state_of(honest.pid) in {"S", "R"}
    assert guest.limits.devices[0].cores_permille == 300


def test_one_that_ignores_sigterm_is_killed(node):
    guest = node.tenant("t", grace_s=1.5)
    lost = {k: v for k, v in guest.environment.items() if k != "LD_PRELOAD"}
    process = guest.program("stubborn", "alloc", 10, env=lost)
    node.watch(lambda: process.poll() is not None)
    assert process.returncode == -9
    assert [e["event"] for e in guest.acts()][:3] == ["suspend", "terminate", "kill"]


def test_one_whose_first_thread_has_ended_is_no_dead_one(node):
    guest = node.tenant("t", grace_s=1.5)
    lost = {k: v for k, v in guest.environment.items() if k != "LD_PRELOAD"}
    process = guest.program("load", 500, "headless", env=lost)
    node.watch(lambda: state_of(process.pid) == "Z" and is_running(process.pid))
    node.watch(lambda: guest.events("terminate"))
    node.watch(lambda: not is_running(process.pid))


def test_a_page_cut_to_nothing_leaves_nobody_on_the_device(node, tmp_path):
    neighbour = node.tenant("neighbour")
    well_behaved = neighbour.launcher("--kernel-us", 300, "--seconds", 60, "--sync-every", 10)
    copy = tmp_path / "notthedriver.so"
    shutil.copy(paths.sim_dir() / "libcuda.so.1", copy)
    guest = node.tenant("t", grace_s=1.5)
    guest.program("context", "copy", copy, "alloc", 300, "truncate", "load", 1000)
    pid, _ = node.watch(lambda: offender_of(node, guest))
    node.watch(lambda: not is_running(pid))
    assert neighbour.acts() == []
    assert well_behaved.poll() is None


def test_a_process_in_a_pid_namespace_of_its_own_is_found_by_the_pid_it_has_outside(node):
    if subprocess.run(["unshare", "-pf", "true"], check=False).returncode:
        pytest.skip("no pid namespace can be made here")
    guest = node.tenant("t", grace_s=1.5)
    lost = {k: v for k, v in guest.environment.items() if k != "LD_PRELOAD"}
    guest.start(
        "unshare", "-pf", "--mount-proc", sys.executable, str(PROGRAM), "alloc", "300", env=lost
    )
    event = node.watch(lambda: guest.events("suspend"))[0]
    (offender,) = event["processes"]
    assert str(PROGRAM) in Path(f"/proc/{offender['pid']}/cmdline").read_text()
    node.watch(lambda: not is_running(offender["pid"]))


def test_a_new_process_in_a_pid_namespace_with_a_slot_is_no_offender(node):
    if subprocess.run(["unshare", "-pf", "true"], check=False).returncode:
        pytest.skip("no pid namespace can be made here")
    guest = node.tenant("t")
    guest.start(
        "unshare", "-pf", "--mount-proc", sys.executable, str(PROGRAM), "alloc", "300", "load",
        "100",
    )  # fmt: skip
    node.watch(lambda: any(r.alive and r.memory_bytes > 1 << 28 for r in node.simulated.record(0)))
    node.watch_for(4)
    assert guest.acts() == []


def test_who_is_of_no_tenant_is_told_of_and_left_alone(node):
    guest = node.tenant("t")
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), "alloc", "100"], env=node.bare, stdout=subprocess.PIPE
    )
    try:
        (foreign,) = node.watch(lambda: node.enforcer.foreign)
        assert foreign.process.pid == process.pid
        assert str(PROGRAM) in foreign.process.command
        node.watch_for(3)
        assert process.poll() is None
        assert state_of(process.pid) == "S"
        assert guest.acts() == []
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_killed_agent_goes_on_where_it_was(node, static_launcher):
    guest = node.tenant("t", grace_s=4)
    process = way("no preload", guest, static_launcher)
    node.watch(lambda: guest.events("suspend"))
    node.watch_for(2)
    node.restart()
    time.sleep(1)
    assert state_of(process.pid) == "T"
    node.looks.clear()
    node.watch(lambda: process.poll() is not None)
    assert len(node.looks) <= 6, "the grace began anew"
    assert [e["event"] for e in guest.acts()] == ["suspend", "terminate"]
