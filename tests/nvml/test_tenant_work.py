"""NVML inside a tenant while programs run: what it uses itself, nothing of its neighbours."""

from __future__ import annotations

import json

import pytest

from penstock_shim import pages

MIB, GIB = 1 << 20, 1 << 30
MS = 1_000_000
NOT_FOUND = 6


@pytest.fixture
def tenants(box):
    return [box.tenant("a", (0, 8 * GIB)), box.tenant("b", (0, 4 * GIB))]


@pytest.fixture
def programs(box, tenants):
    programs = [box.program(name, tenant) for name, tenant in zip("ab", tenants, strict=True)]
    programs[0].do(f"alloc {1 * GIB}")
    programs[1].do(f"alloc {2 * GIB}")
    return programs


def test_used_memory_is_the_ledgers_and_free_is_what_the_quota_leaves(box, tenants, programs):
    for tenant, quota, least in ((tenants[0], 8 * GIB, GIB), (tenants[1], 4 * GIB, 2 * GIB)):
        charged = pages.read_usage(tenant / "usage").devices[0].total_bytes
        info = box.nvml(tenant)("nvmlDeviceGetMemoryInfo(device(0))")
        assert info == {"total": quota, "used": charged, "free": quota - charged}
        assert charged >= least


def test_free_memory_is_never_more_than_the_device_has(box, tenants, programs):
    hog = box.program("hog")
    hog.do(f"alloc {box.devices[0].memory_bytes - 6 * GIB}")
    outside = box.nvml()("nvmlDeviceGetMemoryInfo(device(0))")
    info = box.nvml(tenants[0])("nvmlDeviceGetMemoryInfo(device(0))")
    assert info["free"] == outside["free"] < info["total"] - info["used"]


def test_each_tenant_sees_its_own_processes(box, tenants, programs):
    outside = box.nvml()
    call = "nvmlDeviceGetComputeRunningProcesses(device(0))"
    whole = {p["pid"]: p["usedGpuMemory"] for p in outside(call)}
    assert whole.keys() == {program.pid for program in programs}
    for tenant, program in zip(tenants, programs, strict=True):
        nvml = box.nvml(tenant)
        for version in ("", "_v2"):
            [own] = nvml(call.replace("(device", f"{version}(device"))
            assert (own["pid"], own["usedGpuMemory"]) == (program.pid, whole[program.pid])


def test_each_tenant_sees_its_own_utilisation(box, tenants, programs):
    programs[1].do(f"queue 2000 {2 * MS}")  # it is still at it when slow programs have begun
    box.let_samples_pass(4)
    idle, busy = box.nvml(tenants[0]), box.nvml(tenants[1])
    call = "nvmlDeviceGetProcessUtilization(device(0), 0)"
    assert {sample["pid"] for sample in busy(call)} == {programs[1].pid}
    assert idle.error(call) == NOT_FOUND
    assert busy("nvmlDeviceGetUtilizationRates(device(0))")["gpu"] > 50
    assert idle("nvmlDeviceGetUtilizationRates(device(0))")["gpu"] == 0


def test_accounting_answers_for_the_tenants_own_processes_alone(box, tenants, programs):
    for tenant, own, other in (
        (tenants[0], programs[0], programs[1]),
        (tenants[1], programs[1], programs[0]),
    ):
        nvml = box.nvml(tenant)
        assert nvml("nvmlDeviceGetAccountingPids(device(0))") == [own.pid]
        assert nvml(f"nvmlDeviceGetAccountingStats(device(0), {own.pid})")["isRunning"] == 1
        assert nvml.error(f"nvmlDeviceGetAccountingStats(device(0), {other.pid})") == NOT_FOUND


def test_a_process_that_ended_is_gone_from_its_tenants_list(box, tenants, programs):
    nvml = box.nvml(tenants[0])
    programs[0].end()
    assert nvml("nvmlDeviceGetComputeRunningProcesses(device(0))") == []


def test_tools_inside_a_tenant_show_quota_and_own_processes(box, tenants, programs):
    [gpu] = json.loads(box.tool("gpustat", "--json", tenant=tenants[0]))["gpus"]
    charged = pages.read_usage(tenants[0] / "usage").devices[0].total_bytes
    assert gpu["memory.total"] == 8192
    assert gpu["memory.used"] == charged // MIB
    assert [process["pid"] for process in gpu["processes"]] == [programs[0].pid]
    screen = box.tool("nvitop", "-1", tenant=tenants[0])
    assert "8192MiB" in screen
    assert str(programs[0].pid) in screen
    assert str(programs[1].pid) not in screen
