"""The device's own record: shares, sums, and what is left of a process that was killed."""

from __future__ import annotations

import itertools
import json
import random
import select
import sys
import time

import pytest

from penstock_shim import simulator

pytestmark = pytest.mark.timed

MIB = 1 << 20
CONTEXT_BYTES = 200 * MIB
RESERVED_BYTES = 96 * MIB
SLICE_NS = 2_000_000

ATTRIBUTE_PROGRAM = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
count, uuids = ctypes.c_int(-1), []
answer = cuda.cuInit(0)
cuda.cuDeviceGetCount(ctypes.byref(count))
for device in range(max(count.value, 0)):
    uuid = (ctypes.c_ubyte * 16)()
    cuda.cuDeviceGetUuid(uuid, device)
    uuids.append(bytes(uuid).hex())
print(json.dumps([answer, uuids]))
"""


def ready(process):
    readable, _, _ = select.select([process.stdout], [], [], 30)
    assert readable, "the program said nothing for 30 s"
    assert process.stdout.readline() == "ready\n"
    return process


def by_tag(machine):
    return {record.tag: record for record in machine.record(0)}


def pass_time(machine, seconds):
    """Waits until the simulated device's own record is that much longer."""
    end = machine.usage(0).at_ns + int(seconds * 1e9)
    while (at := machine.usage(0).at_ns) < end:
        select.select([], [], [], min(0.05, (end - at) / 1e9))


def shares(machine, seconds):
    before = by_tag(machine)
    pass_time(machine, seconds)
    after = by_tag(machine)
    window = next(iter(after.values())).at_ns - next(iter(before.values())).at_ns
    return {t: (after[t].busy_ns - before[t].busy_ns) / window for t in before}, window


def test_the_record_holds_exactly_the_submitted_work(machine, program):
    machine.run(program("load"), "counted", tag="counted")
    (record,) = machine.machine.record(0)
    assert (record.tag, record.command, record.alive) == ("counted", "load", False)
    assert (record.busy_ns, record.launches, record.pending) == (70_000_000, 700, 0)
    assert record.memory_bytes == 0
    assert record.peak_memory_bytes == CONTEXT_BYTES + 2 * MIB
    assert machine.machine.usage(0).busy_ns == record.busy_ns


def test_two_backlogged_processes_share_evenly_but_for_a_slice(machine, program):
    for tag in ("one", "two"):
        ready(machine.start(program("load"), "backlogged", tag=tag))
    pass_time(machine.machine, 0.2)
    found, window = shares(machine.machine, 1.0)
    assert abs(found["one"] - found["two"]) <= SLICE_NS / window
    # 50 us of every 2.05 ms go into the switch
    assert sum(found.values()) == pytest.approx(2000 / 2050, abs=0.005)


def test_a_process_alone_has_the_device_to_itself(machine, program):
    ready(machine.start(program("load"), "backlogged", tag="one"))
    found, _ = shares(machine.machine, 0.5)
    assert found["one"] > 0.995
    assert machine.machine.usage(0).switch_ns == 0


def test_a_synchronising_process_gives_its_slice_up_when_it_has_nothing_to_run(machine, program):
    ready(machine.start(program("load"), "backlogged", tag="backlogged"))
    ready(machine.start(program("load"), "synchronising", tag="synchronising"))
    found, _ = shares(machine.machine, 1.0)
    # one kernel of 200 us, then a slice of 2 ms for the other and two switches
    assert 0.02 < found["synchronising"] < 0.15
    assert found["backlogged"] > 0.7


def test_a_killed_process_leaves_its_record_and_nothing_else(machine, program):
    process = ready(machine.start(program("load"), "holding_memory", tag="doomed"))
    usage = machine.machine.usage(0)
    assert usage.memory_used_bytes == RESERVED_BYTES + CONTEXT_BYTES + 1002 * MIB
    assert (usage.processes, usage.computing) == (1, 1)
    process.kill()
    process.wait()
    usage = machine.machine.usage(0)
    assert usage.memory_used_bytes == RESERVED_BYTES
    assert (usage.processes, usage.computing) == (0, 0)
    (record,) = machine.machine.record(0)
    assert (record.tag, record.alive, record.pending) == ("doomed", False, 0)
    busy = record.busy_ns
    pass_time(machine.machine, 0.05)
    assert machine.machine.record(0)[0].busy_ns == busy
    machine.run(program("load"), "counted")  # the device is free again


def test_processes_killed_at_any_moment_harm_nobody(machine, program):
    rng = random.Random(7)  # noqa: S311  moments, not secrets
    restless = program("load")
    steady = ready(machine.start(restless, "synchronising", tag="steady"))
    for round_number in range(40):
        victims = [ready(machine.start(restless, "restless")) for _ in range(2)]
        pass_time(machine.machine, rng.uniform(0.0, 0.01))
        for victim in victims:
            victim.kill()
        for victim in victims:
            victim.communicate()
        usage = machine.machine.usage(0)
        assert usage.processes == 1, round_number
        assert usage.memory_used_bytes == RESERVED_BYTES + CONTEXT_BYTES + 2 * MIB, round_number
        assert steady.poll() is None, round_number
    before = by_tag(machine.machine)["steady"].busy_ns
    pass_time(machine.machine, 0.1)
    assert by_tag(machine.machine)["steady"].busy_ns - before > 20_000_000
    records = machine.machine.record(0)
    assert machine.machine.usage(0).busy_ns - sum(r.busy_ns for r in records) < 50_000_000


def test_utilisation_samples_are_taken_though_nobody_looks(machine, program):
    ready(machine.start(program("load"), "backlogged"))
    time.sleep(0.6)  # nothing may ask the machine meanwhile: that is the point
    (pid,) = [r.pid for r in machine.machine.record(0)]
    samples = machine.machine.samples(0, pid)
    steps = {b.at_ns - a.at_ns for a, b in itertools.pairwise(samples)}
    assert len(samples) >= 4
    assert steps == {139_000_000}
    assert samples[-1].busy_ns - samples[-2].busy_ns > 130_000_000


def test_a_file_that_is_no_machine_is_refused(machine, tmp_path):
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"x" * 10_000)
    with pytest.raises(simulator.MachineError, match="not a simulated machine"):
        simulator.Machine(wrong)
    truncated = tmp_path / "truncated"
    with machine.path.open("rb") as whole:
        truncated.write_bytes(whole.read(4096))
    with pytest.raises(simulator.MachineError, match="truncated"):
        simulator.Machine(truncated)
    answer, _ = json.loads(
        machine.run(sys.executable, "-c", ATTRIBUTE_PROGRAM, PENSTOCK_SIM_MACHINE=str(truncated))
    )
    assert answer == 100  # CUDA_ERROR_NO_DEVICE


def test_a_process_has_all_of_its_disk_or_memory_once_it_is_on_the_device(machine, program):
    """A later store must not meet a full file system: that would be a SIGBUS."""

    def kib() -> int:
        return machine.path.stat().st_blocks // 2

    before = kib()
    assert before > 2000  # the devices, with a place for every process
    ready(machine.start(program("load"), "backlogged"))
    assert kib() > before + 1300  # its operations and events
    for process in machine.started:
        process.kill()
        process.wait()
    machine.machine.usage(0)  # somebody looks
    assert kib() < before + 100


def test_machines_of_different_places_have_different_uuids_and_one_keeps_what_it_has(tmp_path):
    def uuids(name: str, place: str) -> list[str]:
        with simulator.create_machine(tmp_path / name, "h200,2", place) as one:
            return [device.uuid for device in one.devices()]

    plain, first, second = uuids("a", ""), uuids("b", "node-1"), uuids("c", "node-2")
    assert len({*plain, *first, *second}) == 6
    assert uuids("d", "node-1") == first, "the same place names them alike"
    # one that an older release made, or that was made for another name, is used as it is
    assert uuids("a", "node-1") == plain


def test_a_machine_that_was_truncated_is_an_error_and_kills_nobody(machine):
    machine.path.write_bytes(b"")
    with pytest.raises(simulator.MachineError, match="was truncated"):
        machine.machine.record(0)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1]),
        ("1", [1]),
        ("1,0", [1, 0]),
        ("0,7,1", [0]),
        ("", []),
        ("-1", []),
        ("0,0", []),
        ("{uuid1}", [1]),
        ("{prefix1},0", [1, 0]),
    ],
)
def test_visible_devices_are_chosen_as_the_driver_chooses_them(two_devices, visible, expected):
    uuids = [device.uuid for device in two_devices.machine.devices()]
    more = {}
    if visible is not None:
        more["CUDA_VISIBLE_DEVICES"] = visible.format(uuid1=uuids[1], prefix1=uuids[1][:12])
    answer, seen = json.loads(two_devices.run(sys.executable, "-c", ATTRIBUTE_PROGRAM, **more))
    assert answer == (0 if expected else 100)
    assert seen == [uuids[i].removeprefix("GPU-").replace("-", "") for i in expected]
