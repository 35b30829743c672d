"""Checkpoints of a process by another one: states, refusals, contents, other devices."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.sim.conftest import HERE, TestMachine

MIB = 1 << 20
ANSWER_S = 20


class Talk:
    """A program that answers each line with a line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def say(self, words: str) -> None:
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.answers(ANSWER_S), "no answer"
        line = self.process.stdout.readline().strip()
        assert line, self.process.stderr.read()  # it has ended
        return line

    def answers(self, within_s: float) -> bool:
        return bool(select.select([self.process.stdout], [], [], within_s)[0])

    def ask(self, words: str) -> str:
        self.say(words)
        return self.answer()


@pytest.fixture
def talk(program):
    def start(machine: TestMachine, name: str = "checkpointed", **environment: str) -> Talk:
        talking = Talk(machine.start(program(name), **environment))
        if name == "checkpointed":
            assert talking.answer() == "ready"
        return talking

    return start


@pytest.fixture
def target(machine, talk):
    return talk(machine)


@pytest.fixture
def caller(machine, talk):
    return talk(machine, "checkpoint_caller")


@pytest.fixture
def of_profile(tmp_path):
    """Makes a machine from the test profile with other figures."""
    made: list[TestMachine] = []

    def make(devices: int = 1, name: str | None = None, **figures: float) -> TestMachine:
        text = (HERE / "small.yaml").read_text()
        for key, value in figures.items():
            text = re.sub(rf"^  {key}: .*\n", "", text, flags=re.MULTILINE)
            text += f"  {key}: {value}\n"
        profile = tmp_path / "profile.yaml"
        profile.write_text(text)
        made.append(TestMachine(tmp_path / "machine", devices=devices, profile=profile))
        return made[-1]

    yield make
    for one in made:
        one.close()


def suspend(caller: Talk, target: Talk) -> None:
    assert caller.ask(f"lock {target.pid} 5000") == "CUDA_SUCCESS"
    assert caller.ask(f"checkpoint {target.pid}") == "CUDA_SUCCESS"


def resume(caller: Talk, target: Talk, pairs: str = "") -> None:
    assert caller.ask(f"restore {target.pid} {pairs}") == "CUDA_SUCCESS"
    assert caller.ask(f"unlock {target.pid}") == "CUDA_SUCCESS"


def used(machine: TestMachine, device: int = 0) -> int:
    return machine.machine.usage(device).memory_used_bytes


CALLS = ("lock", "checkpoint", "restore", "unlock")
ALLOWED = {"running": ("lock",), "locked": ("checkpoint", "unlock"), "checkpointed": ("restore",)}


@pytest.mark.parametrize("state", ["running", "locked", "checkpointed"])
def test_in_each_state_only_the_calls_that_lead_on_are_legal(caller, target, state):
    way = {"running": [], "locked": ["lock"], "checkpointed": ["lock", "checkpoint"]}[state]
    for call in way:
        assert caller.ask(f"{call} {target.pid}") == "CUDA_SUCCESS"
    for call in CALLS:
        if call not in ALLOWED[state]:
            assert caller.ask(f"{call} {target.pid}") == "CUDA_ERROR_ILLEGAL_STATE"
            assert caller.ask(f"state {target.pid}") == state


def test_a_process_without_cuda_and_one_that_does_not_exist_are_told_apart(caller):
    assert caller.ask(f"state {os.getpid()}") == "CUDA_ERROR_NOT_INITIALIZED"
    ended = subprocess.Popen(["true"])
    ended.wait()
    for call in ("state", "thread", *CALLS):
        assert caller.ask(f"{call} {ended.pid}") == "CUDA_ERROR_INVALID_VALUE"


def test_the_restore_thread_is_a_thread_of_the_process(caller, target):
    thread = int(caller.ask(f"thread {target.pid}"))
    assert thread != target.pid
    assert Path(f"/proc/{target.pid}/task/{thread}").exists()


def test_a_lock_that_times_out_leaves_the_process_running(caller, target):
    assert target.ask("launch 2000000000") == "launched"
    assert caller.ask(f"lock {target.pid} 50") == "CUDA_ERROR_NOT_READY"
    assert caller.ask(f"state {target.pid}") == "running"
    assert target.ask("launch 1000") == "launched"
    assert caller.ask(f"lock {target.pid} 10000") == "CUDA_SUCCESS"


def test_a_locked_process_waits_in_its_next_call_but_not_in_plain_questions(caller, target):
    assert caller.ask(f"lock {target.pid} 5000") == "CUDA_SUCCESS"
    assert target.ask("count") == "1"
    target.say("allocate 1000")
    assert not target.answers(0.3)
    assert caller.ask(f"unlock {target.pid}") == "CUDA_SUCCESS"
    assert target.answer() == "CUDA_SUCCESS"


def test_a_stopped_process_cannot_be_locked_and_is_running_when_it_goes_on(caller, target):
    os.kill(target.pid, signal.SIGSTOP)
    assert caller.ask(f"lock {target.pid} 100") == "CUDA_ERROR_NOT_READY"
    os.kill(target.pid, signal.SIGCONT)
    assert target.ask("allocate 1000") == "CUDA_SUCCESS"
    assert caller.ask(f"state {target.pid}") == "running"
    suspend(caller, target)


def anonymous(pid: int) -> int:
    """Bytes of a process's own pages of memory, which no file holds."""
    (line,) = re.findall(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(line) * 1024


def test_contents_come_back_bit_for_bit_and_are_in_host_memory_meanwhile(machine, caller, target):
    before = used(machine)
    for size in (100, 5000, 3 * MIB + 12, 700, 70 * MIB):
        assert target.ask(f"allocate {size}") == "CUDA_SUCCESS"
    assert target.ask("fill") == "filled"
    taken, host = used(machine), anonymous(target.pid)
    assert taken - before >= 73 * MIB
    suspend(caller, target)
    assert used(machine) == 96 * MIB
    assert machine.machine.record(0)[0].memory_bytes == 0
    assert anonymous(target.pid) - host > 60 * MIB
    resume(caller, target)
    assert used(machine) == taken
    assert anonymous(target.pid) - host < 10 * MIB
    assert target.ask("compare") == "equal"


def test_streams_and_events_go_on_after_a_restore(caller, target):
    assert float(target.ask("work 5000000")) == pytest.approx(5, rel=0.2)
    suspend(caller, target)
    resume(caller, target)
    assert float(target.ask("work 5000000")) == pytest.approx(5, rel=0.2)


def test_a_restore_to_a_full_device_is_refused_and_succeeds_when_there_is_room(
    machine, talk, caller, target
):
    assert target.ask(f"allocate {1000 * MIB}") == "CUDA_SUCCESS"
    assert target.ask("fill") == "filled"
    suspend(caller, target)
    other = talk(machine)
    assert other.ask(f"allocate {int(other.ask('free'))}") == "CUDA_SUCCESS"
    full = used(machine)
    assert caller.ask(f"restore {target.pid}") == "CUDA_ERROR_OUT_OF_MEMORY"
    assert caller.ask(f"state {target.pid}") == "checkpointed"
    assert used(machine) == full
    other.process.kill()
    other.process.wait()
    resume(caller, target)
    assert target.ask("compare") == "equal"


@pytest.mark.parametrize("state", ["running", "locked", "checkpointed"])
def test_a_process_that_is_killed_in_any_state_leaves_nothing(machine, caller, target, state):
    assert target.ask(f"allocate {100 * MIB}") == "CUDA_SUCCESS"
    if state != "running":
        assert caller.ask(f"lock {target.pid} 5000") == "CUDA_SUCCESS"
    if state == "checkpointed":
        assert caller.ask(f"checkpoint {target.pid}") == "CUDA_SUCCESS"
    target.process.kill()
    target.process.wait()
    assert caller.ask(f"state {target.pid}") == "CUDA_ERROR_INVALID_VALUE"
    assert caller.ask(f"restore {target.pid}") == "CUDA_ERROR_INVALID_VALUE"
    assert used(machine) == 96 * MIB


@pytest.mark.parametrize("call", ["lock", "checkpoint", "restore"])
def test_a_process_that_is_killed_during_a_call_ends_the_call(of_profile, talk, call):
    machine = of_profile(host_link_gb_per_s=0.1)  # 300 MiB take 3 s
    target, caller = talk(machine), talk(machine, "checkpoint_caller")
    if call == "lock":
        assert target.ask("launch 60000000000") == "launched"
    else:
        assert caller.ask(f"lock {target.pid} 5000") == "CUDA_SUCCESS"
    if call == "restore":
        assert caller.ask(f"checkpoint {target.pid}") == "CUDA_SUCCESS"
    caller.say(f"{call} {target.pid} 0" if call == "lock" else f"{call} {target.pid}")
    assert not caller.answers(0.3)
    target.process.kill()
    assert caller.answer() == "CUDA_ERROR_INVALID_VALUE"
    target.process.wait()
    assert used(machine) == 96 * MIB


@pytest.mark.parametrize(
    ("call", "then"), [("lock", "running"), ("checkpoint", "checkpointed"), ("restore", "locked")]
)
def test_a_caller_that_is_killed_leaves_a_state_that_another_goes_on_from(
    of_profile, talk, call, then
):
    machine = of_profile(host_link_gb_per_s=0.2)  # 200 MiB take a second
    target, caller, heir = talk(machine), *(talk(machine, "checkpoint_caller") for _ in range(2))
    target.ask("allocate 5000")
    target.ask("fill")
    if call == "lock":
        assert target.ask("launch 2000000000") == "launched"
    else:
        assert caller.ask(f"lock {target.pid} 5000") == "CUDA_SUCCESS"
    if call == "restore":
        assert caller.ask(f"checkpoint {target.pid}") == "CUDA_SUCCESS"
    caller.say(f"{call} {target.pid} 0" if call == "lock" else f"{call} {target.pid}")
    assert not caller.answers(0.2)
    caller.process.kill()
    caller.process.wait()
    until = time.monotonic() + ANSWER_S
    while heir.ask(f"state {target.pid}") != then:
        assert time.monotonic() < until
    if then == "running":
        assert target.ask("compare") == "equal"  # calls go on although nobody unlocked
        suspend(heir, target)
    if then == "locked":
        assert heir.ask(f"unlock {target.pid}") == "CUDA_SUCCESS"
    else:
        resume(heir, target)
    assert target.ask("compare") == "equal"


@pytest.mark.parametrize("what", ["managed", "exported", "descriptor", "event", "peer"])
def test_what_other_processes_or_devices_share_is_refused_and_nothing_is_changed(
    two_devices, talk, what
):
    target, caller = talk(two_devices), talk(two_devices, "checkpoint_caller")
    target.ask("allocate 5000")
    target.ask("fill")
    assert target.ask(f"make {what}") == "done"
    taken = used(two_devices)
    assert caller.ask(f"lock {target.pid} 5000") == "CUDA_SUCCESS"
    assert caller.ask(f"checkpoint {target.pid}") == "CUDA_ERROR_NOT_SUPPORTED"
    assert caller.ask(f"state {target.pid}") == "locked"
    assert used(two_devices) == taken
    assert caller.ask(f"unlock {target.pid}") == "CUDA_SUCCESS"
    assert target.ask("compare") == "equal"


def test_a_driver_before_580_leaves_a_process_with_managed_memory_failed(of_profile, talk):
    machine = of_profile(driver_major=570)
    target, caller = talk(machine), talk(machine, "checkpoint_caller")
    assert target.ask("make managed") == "done"
    assert caller.ask(f"lock {target.pid} 5000") == "CUDA_SUCCESS"
    assert caller.ask(f"checkpoint {target.pid}") == "CUDA_ERROR_NOT_SUPPORTED"
    assert caller.ask(f"state {target.pid}") == "failed"
    assert target.ask("result") == "CUDA_ERROR_ILLEGAL_STATE"
    for call in CALLS:
        assert caller.ask(f"{call} {target.pid}") == "CUDA_ERROR_ILLEGAL_STATE"


def test_a_driver_before_570_has_no_checkpoints(of_profile, talk):
    machine = of_profile(driver_major=565)
    target, caller = talk(machine), talk(machine, "checkpoint_caller")
    for call in ("state", *CALLS):
        assert caller.ask(f"{call} {target.pid}") == "CUDA_ERROR_NOT_SUPPORTED"


def test_a_client_of_mps_is_refused(machine, talk, caller, tmp_path):
    os.mkfifo(tmp_path / "control")
    target = talk(machine, CUDA_MPS_PIPE_DIRECTORY=str(tmp_path))
    assert caller.ask(f"lock {target.pid} 5000") == "CUDA_SUCCESS"
    assert caller.ask(f"checkpoint {target.pid}") == "CUDA_ERROR_NOT_SUPPORTED"


def hex_uuid(machine: TestMachine, device: int) -> str:
    return machine.machine.devices()[device].uuid.removeprefix("GPU-").replace("-", "")


def pairs_of(machine: TestMachine, *to: int) -> str:
    ids = [hex_uuid(machine, device) for device in range(len(machine.machine.devices()))]
    return " ".join(f"{ids[old]}>{ids[new]}" for old, new in enumerate(to))


def test_a_process_moves_to_another_device_with_all_it_has(two_devices, talk):
    target = talk(two_devices, CUDA_VISIBLE_DEVICES="0")
    caller = talk(two_devices, "checkpoint_caller")
    target.ask(f"allocate {100 * MIB}")
    target.ask("fill")
    assert float(target.ask("work 5000000")) == pytest.approx(5, rel=0.2)
    taken = used(two_devices, 0)
    suspend(caller, target)
    resume(caller, target, pairs_of(two_devices, 1, 0))
    assert used(two_devices, 0) == 96 * MIB
    assert used(two_devices, 1) == taken
    assert target.ask("uuid") == hex_uuid(two_devices, 1)
    assert target.ask("compare") == "equal"
    assert float(target.ask("work 5000000")) == pytest.approx(5, rel=0.2)
    assert target.ask(f"allocate {50 * MIB}") == "CUDA_SUCCESS"
    assert used(two_devices, 1) == taken + 50 * MIB
    target.ask("fill")
    assert not two_devices.machine.record(0)[0].alive
    (record,) = two_devices.machine.record(1)
    assert record.busy_ns == pytest.approx(5_000_000, rel=0.2)
    suspend(caller, target)
    resume(caller, target, pairs_of(two_devices, 1, 0))
    assert target.ask("uuid") == hex_uuid(two_devices, 0)
    assert target.ask("compare") == "equal"
    target.process.kill()
    target.process.wait()
    assert used(two_devices, 0) == used(two_devices, 1) == 96 * MIB


def test_a_map_that_leaves_out_a_device_of_the_machine_is_refused(two_devices, talk):
    target = talk(two_devices, CUDA_VISIBLE_DEVICES="0")
    caller = talk(two_devices, "checkpoint_caller")
    suspend(caller, target)
    whole = pairs_of(two_devices, 1, 0)
    first, second = whole.split()
    once_more = first.split(">")[0] + ">" + first.split(">")[0]
    for wrong in (
        first,
        second,
        f"{first} {first}",
        f"{once_more} {second}",
        f"{first} {once_more[:33]}{32 * '0'}",
    ):
        assert caller.ask(f"restore {target.pid} {wrong}") == "CUDA_ERROR_INVALID_VALUE"
        assert caller.ask(f"state {target.pid}") == "checkpointed"
    resume(caller, target, whole)


def test_a_map_to_a_full_device_is_refused_and_leaves_nothing_there(two_devices, talk):
    target = talk(two_devices, CUDA_VISIBLE_DEVICES="0")
    other = talk(two_devices, CUDA_VISIBLE_DEVICES="1")
    caller = talk(two_devices, "checkpoint_caller")
    target.ask("allocate 5000")
    target.ask("fill")
    suspend(caller, target)
    assert other.ask(f"allocate {int(other.ask('free'))}") == "CUDA_SUCCESS"
    full = used(two_devices, 1)
    pairs = pairs_of(two_devices, 1, 0)
    assert caller.ask(f"restore {target.pid} {pairs}") == "CUDA_ERROR_OUT_OF_MEMORY"
    assert caller.ask(f"state {target.pid}") == "checkpointed"
    assert used(two_devices, 1) == full
    resume(caller, target)
    assert target.ask("compare") == "equal"


def test_before_580_a_map_is_refused(of_profile, talk):
    machine = of_profile(devices=2, driver_major=570)
    target, caller = talk(machine), talk(machine, "checkpoint_caller")
    suspend(caller, target)
    pairs = pairs_of(machine, 1, 0)
    assert caller.ask(f"restore {target.pid} {pairs}") == "CUDA_ERROR_NOT_SUPPORTED"
    resume(caller, target)


def test_no_process_is_lost_when_two_callers_race(machine, talk, target):
    callers = [talk(machine, "checkpoint_caller") for _ in range(4)]
    target.ask("allocate 5000")
    target.ask("fill")
    for _ in range(20):
        for call in CALLS:
            for caller in callers:
                caller.say(f"{call} {target.pid}")
            assert sorted(caller.answer() for caller in callers) == [
                "CUDA_ERROR_ILLEGAL_STATE",
                "CUDA_ERROR_ILLEGAL_STATE",
                "CUDA_ERROR_ILLEGAL_STATE",
                "CUDA_SUCCESS",
            ]
    assert target.ask("compare") == "equal"


def seconds(caller: Talk, words: str) -> float:
    begun = time.monotonic()
    caller.ask(words)
    return time.monotonic() - begun


def test_memory_takes_the_time_of_the_host_link(of_profile, talk):
    machine = of_profile(host_link_gb_per_s=0.2)
    target, caller = talk(machine), talk(machine, "checkpoint_caller")
    assert caller.ask(f"lock {target.pid} 5000") == "CUDA_SUCCESS"
    least_s = (used(machine) - 96 * MIB) / 0.2e9
    assert seconds(caller, f"checkpoint {target.pid}") >= least_s
    assert seconds(caller, f"restore {target.pid}") >= least_s


def test_only_the_first_call_of_a_helper_makes_an_instance_of_the_driver(of_profile, talk):
    machine = of_profile(driver_start_ms=1500)
    target, helper = talk(machine), talk(machine, "checkpoint_caller")
    assert seconds(helper, f"state {target.pid}") >= 1.5
    calls = [f"{call} {target.pid}" for call in CALLS]
    assert sum(seconds(helper, call) for call in calls) < 1.5
    assert helper.ask(f"state {target.pid}") == "running"
    for call in calls:
        assert seconds(talk(machine, "checkpoint_caller"), call) >= 1.5
