"""Each way round the shim that we know: caught by the device and the kernel, handled by policy."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.node.enforcement.ladder import ROUNDS
from penstock_shim import paths

from .conftest import PROGRAM, expect, is_running, state_of

CAUGHT_WITHIN_NS = 4 * 10**9  # three seconds, and one for what else this machine does
pytestmark = pytest.mark.timed

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


WAYS = [
    "no preload",
    "another preload",
    "an emptied environment",
    "a static launcher",
    "an overwritten page",
    "another fork, another session",
]


def way(name: str, guest, static_launcher, mib: int = 256) -> subprocess.Popen[str]:
    """Starts a program of `guest` that takes the device, and `mib` of memory, past the shim."""
    words = [sys.executable, str(PROGRAM), "alloc", str(mib), "load", "1000"]
    lost = {k: v for k, v in guest.environment.items() if k != "LD_PRELOAD"}
    if name == "no preload":
        return guest.start(*words, env=lost)
    if name == "another preload":
        maths = "/lib/x86_64-linux-gnu/libm.so.6"
        return guest.start(*words, env={**guest.environment, "LD_PRELOAD": maths})
    # The tenant's own shell is there for a while: it is seen before it starts what is to be caught.
    script = 'sleep 1.2; "$@" & wait'
    if name == "an emptied environment":
        kept = ("PATH", "LD_LIBRARY_PATH", "PENSTOCK_SIM_MACHINE", "PENSTOCK_SIM_KERNELS")
        bare = [f"{k}={guest.environment[k]}" for k in kept]
        return guest.start("sh", "-c", script, "sh", "env", "-i", *bare, *words)
    if name == "a static launcher":
        return guest.start("sh", "-c", script, "sh", static_launcher, *words)
    if name == "an overwritten page":
        return guest.program("alloc", mib, "scribble", "load", 1000)
    assert name == "another fork, another session"
    return guest.program("wait", 1.2, "daemon", "alloc", mib, "load", 1000, env=lost)


def offender_with(node, mib: int):
    """The living process that holds about so much: its pid, and when it came to the device."""
    context = node.device.context_bytes
    for record in node.simulated.record(0):
        if record.alive and 0 <= record.memory_bytes - context - (mib << 20) < 48 << 20:
            return record.pid, record.began_ns
    return None


def test_each_way_is_stopped_within_three_seconds_and_ended_after_the_grace(node, static_launcher):
    neighbour = node.tenant("neighbour", cores=100)
    well_behaved = neighbour.launcher("--kernel-us", 300, "--seconds", 60, "--sync-every", 10)
    node.watch_for(1)
    caught: dict[str, tuple[int, int]] = {}
    stopped_ns: dict[str, int] = {}
    guests = {}
    for number, name in enumerate(WAYS):
        guests[name] = node.tenant(f"t{number}", cores=100, measured="terminate", grace_s=2)
        way(name, guests[name], static_launcher, 256 + 64 * number)

    def all_are_stopped() -> bool:
        for number, name in enumerate(WAYS):
            found = offender_with(node, 256 + 64 * number)
            if found and name not in caught:
                caught[name] = found
            if name not in stopped_ns and guests[name].events("suspend"):
                stopped_ns[name] = node.looks[-1]
        return len(stopped_ns) == len(WAYS)

    node.watch(all_are_stopped)
    for name, guest in guests.items():
        pid, began_ns = caught[name]
        assert stopped_ns[name] - began_ns < CAUGHT_WITHIN_NS, name
        (event,) = guest.events("suspend")
        assert [one["pid"] for one in event["processes"]] == [pid], name
        assert event["kind"] == ("damaged" if name == "an overwritten page" else "uncharged")
    node.watch(lambda: not any(is_running(pid) for pid, _ in caught.values()))
    for name, guest in guests.items():
        assert [e["event"] for e in guest.acts()][:2] == ["suspend", "terminate"], name
    assert neighbour.acts() == []
    assert well_behaved.poll() is None


def test_a_neighbour_keeps_its_share_while_one_past_the_shim_is_caught(node, static_launcher):
    neighbour = node.tenant("neighbour", cores=300)
    well_behaved = neighbour.launcher("--kernel-us", 300, "--seconds", 60, "--sync-every", 10)
    node.watch(lambda: node.began_ns(well_behaved.pid))
    node.watch_for(2)
    guest = node.tenant("t", cores=300, measured="suspend", grace_s=2)
    way("no preload", guest, static_launcher)
    node.watch(lambda: offender_with(node, 256))
    before_ns, began_ns = node.busy_ns(well_behaved.pid), time.monotonic_ns()
    node.watch(lambda: guest.events("suspend"))
    node.watch_for(6)
    share = (node.busy_ns(well_behaved.pid) - before_ns) / (time.monotonic_ns() - began_ns)
    # Within two points on an idle machine; a busy one takes its toll of a program in user space.
    assert 0.25 <= share <= 0.33
    assert neighbour.acts() == []


def test_the_policy_says_how_far_it_goes(node, static_launcher):
    expected = {
        "deny": ["exceeded"],
        "throttle": ["throttle"],
        "suspend": ["suspend"],
        "terminate": ["suspend", "terminate"],
    }
    guests, programs = {}, {}
    for number, measured in enumerate(expected):
        guests[measured] = node.tenant(measured, cores=200, measured=measured, grace_s=1.5)
        programs[measured] = way("no preload", guests[measured], static_launcher, 64 * number)
    node.watch(lambda: all(len(guests[one].acts()) >= len(expected[one]) for one in expected))
    node.watch_for(2.5)
    for measured, events in expected.items():
        told = [e["event"] for e in guests[measured].acts() if e.get("kind") == "uncharged"]
        told = [event for event in told if event != "restored"]
        assert told == events
    assert guests["throttle"].limits.devices[0].cores_permille <= 100
    assert state_of(programs["suspend"].pid) == "T"
    assert programs["terminate"].poll() == -15
    for measured in ("deny", "throttle"):
        assert state_of(programs[measured].pid) in {"S", "R"}


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


def test_one_that_is_started_anew_each_time_ends_with_who_starts_it(node):
    neighbour = node.tenant("neighbour")
    honest = neighbour.program("alloc", 50)
    guest = node.tenant("t", grace_s=1)
    lost = {k: v for k, v in guest.environment.items() if k != "LD_PRELOAD"}
    again = 'while :; do "$@"; done'
    words = ("sh", "-c", again, "sh", sys.executable, str(PROGRAM), "stubborn", "load", "1000")
    process = guest.start(*words, env=lost)
    node.watch(lambda: process.poll() is not None, 60)
    assert process.returncode == -9
    kills = guest.events("kill")
    assert len({one["processes"][0]["pid"] for one in kills}) >= ROUNDS
    assert "all processes of the tenant are killed" in kills[-1]["reason"]
    asked = [one for one in guest.events("terminate") if one["kind"] == "uncharged"]
    assert len(asked) == 1, "the first, and nobody after it"
    assert honest.poll() is None
    assert neighbour.acts() == []


def test_what_was_stopped_does_not_stay_so_when_its_tenant_goes(node, tmp_path):
    guest = node.tenant("t", measured="suspend")
    lost = {k: v for k, v in guest.environment.items() if k != "LD_PRELOAD"}
    past = guest.program("alloc", 10, env=lost)
    copy = tmp_path / "notthedriver.so"
    shutil.copy(paths.sim_dir() / "libcuda.so.1", copy)
    forged = guest.program("context", "copy", copy, "load", 200)
    node.watch(lambda: state_of(past.pid) == "T")
    assert state_of(forged.pid) in {"S", "R"}, "within its share it may go on"
    node.change(guest, suspended=True)
    node.watch(lambda: state_of(forged.pid) == "T")
    del node.guests["t"]
    try:
        node.watch(lambda: past.poll() is not None)
        assert past.returncode == -9, "nobody would watch it"
        node.watch(lambda: state_of(forged.pid) in {"S", "R"})
    finally:
        node.guests["t"] = guest


def test_an_order_to_suspend_holds_for_what_goes_round_the_shim_whatever_the_policy(node, tmp_path):
    copy = tmp_path / "notthedriver.so"
    shutil.copy(paths.sim_dir() / "libcuda.so.1", copy)
    guest = node.tenant("t", cores=300, measured="deny")
    lost = {k: v for k, v in guest.environment.items() if k != "LD_PRELOAD"}
    stranger = guest.program("load", 100, env=lost)
    forged = guest.program("context", "copy", copy, "load", 100)
    honest = guest.program("alloc", 10)
    expect(honest, "alloc 0")
    node.watch(lambda: guest.events("exceeded"))
    node.watch_for(3)
    assert {state_of(one.pid) for one in (stranger, forged)} <= {"S", "R"}
    node.change(guest, suspended=True)
    node.watch(lambda: [state_of(one.pid) for one in (stranger, forged)] == ["T", "T"])
    reasons = [e["reason"] for e in guest.events("suspend") if e["kind"] == "suspended"]
    assert "still used the device" in reasons[0]
    busy_ns = node.busy_ns(forged.pid)
    os.kill(forged.pid, signal.SIGCONT)  # as its owner may
    node.watch(lambda: state_of(forged.pid) == "T")
    node.watch_for(6)
    assert node.busy_ns(forged.pid) - busy_ns < 500_000_000
    assert [state_of(one.pid) for one in (stranger, forged)] == ["T", "T"]
    assert state_of(honest.pid) in {"S", "R"}
    node.change(guest, suspended=False)
    node.watch(lambda: {state_of(one.pid) for one in (stranger, forged)} <= {"S", "R"})
    assert not guest.events("terminate", "kill")


def test_one_that_is_woken_again_and_again_while_suspended_is_ended(node, tmp_path):
    copy = tmp_path / "notthedriver.so"
    shutil.copy(paths.sim_dir() / "libcuda.so.1", copy)
    guest = node.tenant("t", cores=300, grace_s=1.5)
    forged = guest.program("context", "copy", copy, "load", 200)
    node.watch(lambda: node.busy_ns(forged.pid))
    node.change(guest, suspended=True)
    waker = guest.start("sh", "-c", f"while kill -CONT {forged.pid}; do sleep 0.02; done")
    node.watch(lambda: forged.poll() is not None, 60)
    assert forged.returncode == -15
    assert guest.events("terminate")[0]["kind"] == "cores"
    waker.wait(10)


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
    pid, _ = node.watch(lambda: offender_with(node, 300))
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
    node.watch(lambda: offender_with(node, 300))
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
