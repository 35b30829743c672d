"""NVML's figures are what the simulated device really did."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.timed

MIB = 1 << 20
MS = 1_000_000
NOT_FOUND, INSUFFICIENT_SIZE = 6, 7


def record_of(box, program, device=0):
    return next(r for r in box.machine.record(device) if r.pid == program.pid)


def steady(box, read):
    """`read()` with the device's samples, both from within one sample period."""
    while True:
        before = box.machine.samples(0)
        value = read()
        if box.machine.samples(0) == before:
            return value, before


def busy_percent(samples):
    first, last = samples[0], samples[-1]
    return (last.busy_ns - first.busy_ns) * 100 // (last.at_ns - first.at_ns)


def test_processes_and_their_memory_are_those_of_the_record(box):
    nvml = box.nvml()
    programs = [box.program("one"), box.program("two")]
    programs[0].do(f"alloc {100 * MIB}")
    programs[1].do(f"alloc {300 * MIB}")
    for version in (
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetComputeRunningProcesses_v2",
    ):
        listed = {p["pid"]: p["usedGpuMemory"] for p in nvml(f"{version}(device(0))")}
        assert listed == {p.pid: record_of(box, p).memory_bytes for p in programs}
    context_bytes = box.devices[0].context_bytes
    assert listed[programs[0].pid] >= 100 * MIB + context_bytes
    used = nvml("nvmlDeviceGetMemoryInfo(device(0), version=nvmlMemory_v2)")["used"]
    assert used == sum(listed.values())
    assert nvml("nvmlDeviceGetComputeRunningProcesses(device(1))") == []


def test_a_process_that_ended_is_listed_no_more_but_accounted(box):
    nvml = box.nvml()
    program = box.program()
    program.do(f"run 20 {5 * MS}")
    program.end()
    assert nvml("nvmlDeviceGetComputeRunningProcesses(device(0))") == []
    assert program.pid in nvml("nvmlDeviceGetAccountingPids(device(0))")
    stats = nvml(f"nvmlDeviceGetAccountingStats(device(0), {program.pid})")
    record = record_of(box, program)
    assert not record.alive
    assert stats["isRunning"] == 0
    assert stats["maxMemoryUsage"] == record.peak_memory_bytes
    life_ns = record.ended_ns - record.began_ns
    assert stats["time"] == life_ns // MS
    assert stats["gpuUtilization"] == record.busy_ns * 100 // life_ns > 0


def test_a_list_that_does_not_fit_says_how_long_it_is(box):
    nvml = box.nvml()
    programs = [box.program(), box.program()]
    call = (
        "[[_nvmlGetFunctionPointer('nvmlDeviceGetComputeRunningProcesses_v3')("
        "device(0), byref(n), a), n.value] "
        "for n, a in [(c_uint({0}), (c_nvmlProcessInfo_v3_t * 4)())]][0]"
    )
    assert nvml(call.format(0)) == [INSUFFICIENT_SIZE, 2]
    assert nvml(call.format(1)) == [INSUFFICIENT_SIZE, 2]
    assert nvml(call.format(4)) == [0, len(programs)]


def test_device_utilisation_is_the_last_sample_period_in_whole_percent(box):
    nvml = box.nvml()
    program = box.program()
    program.do(f"run 200 {2 * MS}")
    rates, samples = steady(box, lambda: nvml("nvmlDeviceGetUtilizationRates(device(0))"))
    assert rates["gpu"] == busy_percent(samples[-2:])
    program.do(f"queue 400 {2 * MS}")
    box.let_samples_pass(3)
    rates, samples = steady(box, lambda: nvml("nvmlDeviceGetUtilizationRates(device(0))"))
    assert rates["gpu"] == busy_percent(samples[-2:]) > 90
    assert nvml("nvmlDeviceGetPowerUsage(device(0))") > 0.9 * nvml(
        "nvmlDeviceGetEnforcedPowerLimit(device(0))"
    )


def test_process_utilisation_is_each_processes_share_of_the_last_sample_period(box):
    nvml = box.nvml()
    programs = [box.program("one"), box.program("two")]
    for program in programs:
        program.do(f"queue 600 {2 * MS}")
    box.let_samples_pass(5)
    call = "nvmlDeviceGetProcessUtilization(device(0), 0)"
    (listed, own), _ = steady(
        box,
        lambda: (nvml(call), {p.pid: box.machine.samples(0, p.pid) for p in programs}),
    )
    shares = {sample["pid"]: sample["smUtil"] for sample in listed}
    assert shares.keys() == {program.pid for program in programs}
    for program in programs:
        assert shares[program.pid] == busy_percent(own[program.pid][-2:])
        assert 40 <= shares[program.pid] <= 50
    newest = max(sample["timeStamp"] for sample in listed)
    later = nvml.answer(f"nvmlDeviceGetProcessUtilization(device(0), {newest + 10**9})")
    assert later == {"nvml": NOT_FOUND}


def test_a_process_that_was_idle_in_the_last_sample_period_has_no_sample(box):
    nvml = box.nvml()
    program = box.program("one")
    program.do(f"queue 300 {2 * MS}")
    box.let_samples_pass(2)
    call = "nvmlDeviceGetProcessUtilization(device(0), 0)"
    (listed, own), _ = steady(box, lambda: (nvml(call), box.machine.samples(0, program.pid)))
    assert [entry["smUtil"] for entry in listed] == [busy_percent(own[-2:])]
    program.do("run 1 1000")
    box.let_samples_pass(2)
    assert nvml.answer(call) == {"nvml": NOT_FOUND}


def test_accounting_v2_sums_device_time_in_hundredths_of_a_percent(box):
    nvml = box.nvml()
    program = box.program()
    call = (
        "[[_nvmlGetFunctionPointer('nvmlDeviceGetAccountingStats_v2')(device(0), buffer), "
        "*buffer] for buffer in [(c_ulonglong * 16)({pid})]][0]"
    )
    before = nvml(call.format(pid=program.pid))
    program.do(f"run 100 {2 * MS}")
    after = nvml(call.format(pid=program.pid))
    assert before[0] == after[0] == 0
    sum_index = 5  # pid+running, utilisations, memory, samples, sum
    period_ns = box.devices[0].sample_period_ns
    busy_ns = (after[sum_index] - before[sum_index]) * period_ns / 10_000
    assert busy_ns == pytest.approx(record_of(box, program).busy_ns, abs=2 * period_ns / 10_000)
    assert busy_ns == pytest.approx(200 * MS, rel=0.02)


def test_energy_grows_with_busy_time(box):
    nvml = box.nvml()
    program = box.program()
    program.do(f"run 100 {2 * MS}")
    usage = box.machine.usage(0)
    energy_mj = nvml("nvmlDeviceGetTotalEnergyConsumption(device(0))")
    later = box.machine.usage(0)
    bounds = [
        700_000 * (0.15 * (u.at_ns - u.created_ns) + 0.85 * u.busy_ns) / 1e9 for u in (usage, later)
    ]
    assert bounds[0] - 1 <= energy_mj <= bounds[1] + 1


def test_tools_show_the_processes_of_the_record(box):
    program = box.program("worker")
    program.do(f"alloc {1024 * MIB}")
    record = record_of(box, program)
    gpus = json.loads(box.tool("gpustat", "--json"))["gpus"]
    assert [(p["pid"], p["gpu_memory_usage"]) for p in gpus[0]["processes"]] == [
        (program.pid, record.memory_bytes // MIB)
    ]
    assert gpus[0]["memory.used"] == record.memory_bytes // MIB
    assert str(program.pid) in box.tool("nvitop", "-1")
