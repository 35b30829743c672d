"""Handshakes: the agent knows each process by its host pid, whatever the process claims."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tests.agent.conftest import wait_until
from tests.agent.support.programs import (
    LAUNCHER,
    backlogged,
    environment_for,
    open_to_nobody,
    start_past_the_shim,
)
from tests.agent.support.readings import known, shown
from tests.containers.support import images

from penstock.node.agent.peer import NoPeerError, Peer
from penstock.node.enforcement.process import read_stat, why_unshimmed
from penstock_shim import simulator
from penstock_shim._native import ffi, lib

NOBODY = 65534
PROGRAM = Path(__file__).parents[1] / "enforce" / "support" / "gpu_program.py"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes users and namespaces")
# Claims a slot, and so does a child that closed all descriptors and put others in their place.
FORKING = textwrap.dedent(
    """
    import os, sys, time
    sys.path.insert(0, sys.argv[1])
    from tests.enforce.support.gpu_program import Device
    def held():
        found = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")[:-1]]
        return [one for one in found if one.startswith("socket:")]
    child = os.fork()
    if child == 0:
        os.closerange(3, 64)
        for number in range(3, 64):
            os.dup2(0, number)
    device = Device()
    assert device.alloc(8) == 0
    print(f"{os.getpid()} {len(held())}\\n", end="", flush=True)  # in one write: both say it
    time.sleep(600)
    """
)


def message(**fields) -> bytes:
    """A handshake of this process, with `fields` replaced."""
    made = ffi.new("penstock_handshake *")
    made.magic, made.version = lib.PENSTOCK_HANDSHAKE_MAGIC, lib.PENSTOCK_HANDSHAKE_VERSION
    made.pid = os.getpid()
    for name, value in fields.items():
        setattr(made, name, value)
    return bytes(ffi.buffer(made))


def connected(node, name: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.connect(str(node.state / "tenants" / name / "handshake"))
    return made


@needs_root
def test_processes_are_known_by_their_pid_here_to_ps_and_to_the_next_agent(node):
    granted = node.tenant("t")
    environment = environment_for(granted)
    inner = subprocess.Popen(
        ["unshare", "--pid", "--kill-child", "--fork", "--mount-proc", LAUNCHER, *backlogged(600)],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    node.programs.append(inner)
    outer = node.launch(granted, *backlogged(600))
    root = Path(__file__).parents[2]
    forking = subprocess.Popen(
        [sys.executable, "-c", FORKING, str(root)], env=environment, stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    node.programs.append(forking)
    said = [forking.stdout.readline().split() for _ in range(2)]
    assert [int(sockets) for _, sockets in said] == [0, 0], "no descriptor is kept"
    pids = {int(pid) for pid, _ in said}
    assert forking.pid in pids
    assert len(pids) == 2
    found = wait_until(lambda: len(seen := known(node, "t")) == 4 and seen)
    assert pids | {outer.pid} < found.keys()
    (contained,) = found.keys() - pids - {outer.pid}
    assert found[contained].inner_pid != contained
    assert re.fullmatch(r"\d+\.\d+\..*", found[contained].library)
    slots = {slot.owner: slot.slot for slot in node.usage("t").slots}
    assert {one.owner: one.slot for one in found.values()} == slots

    listed = json.loads(node("ps", "-o", "json").stdout)[0]
    assert {one["pid"] for one in listed["processes"]} == set(found)
    assert contained in listed["members"]

    node.kill()
    os.killpg(forking.pid, 9)
    forking.wait()
    node.start()
    wait_until(lambda: known(node, "t").keys() == {outer.pid, contained})
    late = node.launch(granted, *backlogged(600))
    wait_until(lambda: late.pid in known(node, "t"))


def test_who_lies_about_itself_or_sends_noise_is_not_known_and_costs_a_bounded_amount(node):
    bad = node.state / "tenants" / "bad"
    node.tenant("bad")
    good = node.tenant("good")
    descriptors = Path(f"/proc/{node.process.pid}/fd")
    before = len(list(descriptors.iterdir()))

    for raw in (message(pid=1), message(start_ticks=1), message(slot=5000), b"x" * 72, b"x"):
        with connected(node, "bad") as one:
            one.send(raw)
    silent = [connected(node, "bad") for _ in range(40)]
    refused = 0
    for _ in range(10_000):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            one.connect(str(bad / "handshake"))
            one.send(os.urandom(72))
        except BlockingIOError:
            refused += 1  # and nobody waits
        finally:
            one.close()
    assert refused > 1000
    began = time.monotonic()
    program = node.launch(good, *backlogged(600))
    wait_until(lambda: program.pid in known(node, "good"))
    node.tenant("another")
    assert time.monotonic() - began < 10
    assert len(list(descriptors.iterdir())) < before + 30
    with node.client() as agent:
        assert agent.node().slowest_round.ToNanoseconds() < 10**9
    events = wait_until(
        lambda: [e for e in node.events("bad") if e["event"] == "handshake-refused"]
    )
    assert len(events) == 1
    assert "claims to have pid 1" in events[0]["reason"]
    assert not known(node, "bad")
    assert node.launch(good, "--help").wait(30) is not None
    for one in silent:
        one.close()
    with connected(node, "bad") as one:  # who says the truth is known also after that
        one.send(message())
    wait_until(lambda: os.getpid() in known(node, "bad"), 30)


@needs_root
def test_a_connection_that_outlives_its_process_names_nobody(node):
    """A child uses the inherited connection when the pid may be reused."""
    node.tenant("t")
    script = (
        "import os, socket, sys, time\n"
        "one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "one.connect(sys.argv[1])\n"
        "parent = os.getpid()\n"
        "if os.fork(): os._exit(0)\n"
        "while os.getppid() == parent: time.sleep(0.001)\n"
        "one.send(bytes.fromhex(sys.argv[2]))\n"
        "print('sent', flush=True)\n"
    )
    path = node.state / "tenants" / "t" / "handshake"
    for _ in range(5):
        raw = message().hex()
        done = subprocess.run(
            [sys.executable, "-c", script, str(path), raw], capture_output=True, text=True,
            timeout=30, check=True,
        )  # fmt: skip
        assert done.stdout == "sent\n"
    with connected(node, "t") as one:
        one.send(message())
    assert wait_until(lambda: known(node, "t")).keys() == {os.getpid()}


# Says hello; then its first thread ends before the other, as when one waits for a processor.
ENDING = """
import ctypes, socket, sys, threading
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); input()
threading.Thread(target=input).start()
ctypes.CDLL(None).syscall(ctypes.c_long(60), ctypes.c_long(0))  # exit, of this thread alone
"""


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "its first thread"])
def test_a_process_that_ends_while_it_is_looked_at_has_ended_and_did_not_lie(tmp_path, whole):
    """Its place cannot be seen any more; rejecting it would leave its slot live for ever."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        words = [sys.executable, "-c", ENDING, str(tmp_path / "s")]
        caller = subprocess.Popen(words, stdin=subprocess.PIPE)
        connection, _ = listening.accept()

    def look() -> None:
        with Peer.of(connection) as peer:
            assert peer.pid == caller.pid
            if whole:
                caller.kill()
                caller.wait()
            else:
                caller.stdin.write(b"\n")
                caller.stdin.flush()
                wait_until(lambda: read_stat(caller.pid).leader_has_ended)
                assert not read_stat(caller.pid).has_ended
            peer.check_pid(1, 0)  # what it said in a pid namespace that nobody can see any more

    with connection, pytest.raises(NoPeerError):
        look()
    caller.communicate()


@needs_root
def test_only_the_tenants_user_can_shake_hands(node):
    node.tenant("roots")
    open_to_nobody(node)
    script = (
        f"import os, socket, sys; os.setgid({NOBODY}); os.setuid({NOBODY}); "
        "socket.socket(1, 5).connect(sys.argv[1])"
    )
    path = str(node.state / "tenants" / "roots" / "handshake")
    command = [sys.executable, "-c", script, path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "PermissionError" in done.stderr


@needs_root
def test_use_without_a_handshake_is_a_bypass_that_names_the_libc_and_a_foreign_one_runs_on(node):
    bad = node.tenant("bad", cores=200, measured="deny")
    foreign = subprocess.Popen(
        [LAUNCHER, *backlogged(600)],
        env={**node.environment, **simulator.environment(node.state / "machines" / "h200x1"),
             "PENSTOCK_SIM_KERNELS": environment_for(bad)["PENSTOCK_SIM_KERNELS"]},
        stdin=subprocess.PIPE,
    )  # fmt: skip
    node.programs.append(foreign)
    line = json.loads(node.process.stderr.readline())
    assert (line["event"], line["pid"]) == ("foreign", foreign.pid)
    assert line["command"].startswith(LAUNCHER)
    wait_until(lambda: shown(node, "penstock_device_foreign_processes", "") == [1])
    said = f"1 untracked process, without a quota: pid {foreign.pid} ("
    for command in (["ps"], ["devices"], ["top", "--once"]):
        assert said in " ".join(node(*command).stdout.split()), command
    program = start_past_the_shim(node, bad)
    (event,) = wait_until(
        lambda: [e for e in node.events("bad") if e["event"] == "exceeded"][:1], 40
    )
    assert event["processes"][0]["pid"] == program.pid
    assert "without a handshake" in event["reason"]
    assert "its C library is glibc (libc.so.6)" in event["reason"]
    assert foreign.poll() is None


def test_a_program_of_another_libc_is_named_so(tmp_path):
    try:
        images.need("musl-gcc")
    except images.NotToBeHadError as why:
        pytest.skip(f"musl-gcc builds the program: {why}")
    (tmp_path / "program.c").write_text("#include <unistd.h>\nint main(void) { pause(); }\n")
    for options, words in (((), "its C library is musl ("), (("-static",), "static program")):
        command = ["musl-gcc", *options, "-o", tmp_path / "program", tmp_path / "program.c"]
        subprocess.run(command, check=True)
        program = subprocess.Popen([tmp_path / "program"])
        pid = program.pid
        try:
            wait_until(lambda pid=pid, words=words: words in why_unshimmed(pid), 10)
        finally:
            program.kill()
            program.wait()
