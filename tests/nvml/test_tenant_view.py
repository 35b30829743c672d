"""Two tenants side by side on two devices: what real tools and every form of a call show each."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.interposition.support import debian_packages
from tests.nvml.support import terminal_screen

from penstock_shim import pages

MIB, GIB = 1 << 20, 1 << 30
NOT_FOUND, INSUFFICIENT_SIZE = 6, 7
CACHE = Path(__file__).parents[2] / "build" / "nvtop"


@pytest.fixture
def tenants(box):
    """The first has devices 2 and 0, in this order, the second device 0 alone."""
    return [box.tenant("a", (2, 8 * GIB), (0, 4 * GIB)), box.tenant("b", (0, 3 * GIB))]


@pytest.fixture
def programs(box, tenants):
    """Each tenant's program has memory on device 0 of the machine: a's ordinal 1, b's ordinal 0."""
    programs = [box.program("a", tenants[0], ordinal=1), box.program("b", tenants[1])]
    programs[0].do(f"alloc {1 * GIB}")
    programs[1].do(f"alloc {2 * GIB}")
    return programs


@pytest.fixture(scope="session")
def nvtop() -> Path:
    try:
        return debian_packages.find(CACHE, "nvtop", "main contrib", "bin/nvtop")
    except debian_packages.NotToBeHadError as why:
        pytest.skip(f"no nvtop to run: {why}")


@pytest.fixture
def nvtop_in(box, nvtop, tmp_path):
    started = []

    def start(tenant) -> terminal_screen.Screen:
        environment = {**box.environment(tenant=tenant), "HOME": str(tmp_path), "PATH": "/usr/bin"}
        started.append(terminal_screen.Screen(nvtop, environment))
        return started[-1]

    yield start
    for one in started:
        one.end()


def charged(tenant, device):
    return pages.read_usage(tenant / "usage").devices[device].total_bytes


def gib(value):
    """As nvtop prints it."""
    return f"{value / GIB:.3f}Gi"


def test_nvtop_shows_quota_own_use_and_own_processes(tenants, programs, nvtop_in):
    first, second = (nvtop_in(tenant) for tenant in tenants)
    used = [charged(tenants[0], 1), charged(tenants[1], 0)]
    assert first.shows(r"0\.000Gi/8\.000Gi", f"{gib(used[0])}/4.000Gi", f" {programs[0].pid} ")
    assert second.shows(f"{gib(used[1])}/3.000Gi", f" {programs[1].pid} ")
    assert f" {programs[1].pid} " not in first.text
    assert f" {programs[0].pid} " not in second.text
    assert "Device 1" in first.text
    assert "Device 1" not in second.text
    assert "140.4" not in first.text + second.text


@pytest.mark.parametrize("visible", [None, "", "0", "1,0", "-1"])
def test_tools_show_the_grant_whatever_cuda_is_told_to_see(box, tenants, programs, visible):
    """NVML knows nothing of CUDA_VISIBLE_DEVICES, in a tenant as outside."""
    variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    nvml = box.nvml(tenants[0], **variables)
    assert nvml("nvmlDeviceGetCount()") == 2
    assert nvml("nvmlDeviceGetUUID(device(0))") == box.devices[2].uuid
    assert nvml("nvmlDeviceGetMemoryInfo(device(1))")["used"] == charged(tenants[0], 1)


@pytest.mark.parametrize(
    ("visible", "memory"), [("1", [4096]), ("0", [8192]), ("1,0", [4096, 8192]), ("{0}", [4096])]
)
def test_nvitop_and_cuda_agree_on_what_an_index_means(box, tenants, visible, memory):
    """Nvitop resolves the variable by NVML's numbers, the driver by the grant's: they are one."""
    visible = visible.format(*(device.uuid for device in box.devices))
    code = (
        "import ctypes, nvitop\n"
        "print([device.memory_total() >> 20 for device in nvitop.CudaDevice.all()])\n"
        "cuda, count, total = ctypes.CDLL('libcuda.so.1'), ctypes.c_int(), ctypes.c_size_t()\n"
        "cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count))\n"
        "print([(cuda.cuDeviceTotalMem_v2(ctypes.byref(total), i), total.value >> 20)[1]\n"
        "       for i in range(count.value)])\n"
    )
    printed = box.tool("python", "-c", code, tenant=tenants[0], CUDA_VISIBLE_DEVICES=visible)
    assert printed.splitlines() == [str(memory)] * 2


def test_a_device_has_one_handle_by_index_uuid_bus_and_serial(box, tenants):
    outside = box.nvml()
    for machine_index, found in ((2, 0), (0, 1), (1, None)):
        serial = outside(f"nvmlDeviceGetSerial(device({machine_index}))")
        bus = outside(f"nvmlDeviceGetPciInfo(device({machine_index})).busId")
        nvml = box.nvml(tenants[0])
        for handle in (
            f"nvmlDeviceGetHandleByUUID('{box.devices[machine_index].uuid}')",
            f"nvmlDeviceGetHandleBySerial('{serial}')",
            f"nvmlDeviceGetHandleByPciBusId('{bus}')",
        ):
            if found is None:
                assert nvml.error(handle) == NOT_FOUND
            else:
                assert nvml(f"nvmlDeviceGetIndex({handle})") == found
                total = nvml(f"nvmlDeviceGetMemoryInfo({handle})")["total"]
                assert total == (8 * GIB, 4 * GIB)[found]


@pytest.mark.parametrize("kind", ["Compute", "Graphics", "MPSCompute"])
@pytest.mark.parametrize("version", ["", "_v2", "_v3"])
def test_every_version_of_every_process_list_has_own_processes_alone(
    box, tenants, programs, kind, version
):
    entry = {"": "c_ulonglong * 2", "_v2": "c_nvmlProcessInfo_v2_t"}.get(
        version, "c_nvmlProcessInfo_v3_t"
    )
    call = (
        f"[[_nvmlGetFunctionPointer('nvmlDeviceGet{kind}RunningProcesses{version}')("
        "device({device}), byref(n), {room} and a), n.value, string_at(a, 4).hex()] "
        f"for n, a in [(c_uint({{room}}), (({entry}) * 8)())]][0]"
    )
    for tenant, program, device in zip(tenants, programs, (1, 0), strict=True):
        nvml = box.nvml(tenant)
        pid = program.pid.to_bytes(4, "little").hex()
        own = int(kind == "Compute")
        assert nvml(call.format(device=device, room=8)) == [0, own, pid if own else "00000000"]
        code, count, _ = nvml(call.format(device=device, room=0))
        assert (code, count) == ((INSUFFICIENT_SIZE, 1) if own else (0, 0))


@pytest.mark.parametrize(("mode", "count"), [(0, 1), (1, 0), (2, 0), (3, 1)])
def test_the_detailed_process_list_has_own_processes_alone(box, tenants, programs, mode, count):
    call = (
        "[[_nvmlGetFunctionPointer('nvmlDeviceGetRunningProcessDetailList')(device({device}), "
        "byref(l)), l.numProcArrayEntries, [(p.pid, p.usedGpuMemory) for p in a[:{room}]]] "
        "for a in [(c_nvmlProcessDetail_v1_t * 8)()] for l in [c_nvmlProcessDetailList_t("
        f"version=nvmlProcessDetailList_v1, mode={mode}, numProcArrayEntries={{room}}, "
        "procArray=cast(a, POINTER(c_nvmlProcessDetail_v1_t)) if {room} else None)]][0]"
    )
    for tenant, program, device in zip(tenants, programs, (1, 0), strict=True):
        nvml = box.nvml(tenant)
        code, number, entries = nvml(call.format(device=device, room=8))
        assert (code, number) == (0, count)
        others = [entry for entry in entries if entry[0] not in {0, program.pid}]
        assert others == []
        assert [pid for pid, _ in entries[:count]] == [program.pid] * count
        code, number, _ = nvml(call.format(device=device, room=0))
        assert (code, number) == ((INSUFFICIENT_SIZE, 1) if count else (0, 0))


def test_names_of_other_tenants_processes_are_not_shown(box, tenants, programs):
    for tenant, own, other in zip(tenants, programs, reversed(programs), strict=True):
        nvml = box.nvml(tenant)
        assert "python" in nvml(f"nvmlSystemGetProcessName({own.pid})")
        assert nvml.error(f"nvmlSystemGetProcessName({other.pid})") == NOT_FOUND
        assert nvml.error("nvmlSystemGetProcessName(1)") == NOT_FOUND


def test_a_process_that_is_killed_leaves_every_view(box, tenants, programs):
    nvml = box.nvml(tenants[0])
    call = "nvmlDeviceGetComputeRunningProcesses(device(1))"
    assert [process["pid"] for process in nvml(call)] == [programs[0].pid]
    programs[0].process.send_signal(signal.SIGKILL)
    programs[0].process.wait()
    assert nvml(call) == []
    with pages.UsagePage.open(tenants[0] / "usage") as usage:  # as the supervisor does
        usage.reap(tenants[0] / "quota")
    assert nvml("nvmlDeviceGetMemoryInfo(device(1))")["used"] == 0
    gpus = json.loads(box.tool("gpustat", "--json", tenant=tenants[0]))["gpus"]
    assert [gpu["processes"] for gpu in gpus] == [[], []]
    [other] = json.loads(box.tool("gpustat", "--json", tenant=tenants[1]))["gpus"]
    assert [process["pid"] for process in other["processes"]] == [programs[1].pid]


def test_cuda_and_nvml_agree_on_memory(box, tenants, programs):
    for tenant, program, device in zip(tenants, programs, (1, 0), strict=True):
        nvml = box.nvml(tenant)
        free, total = map(int, program.ask("memory").split())
        info = nvml(f"nvmlDeviceGetMemoryInfo(device({device}))")
        assert (info["free"], info["total"]) == (free, total)
        second = nvml(f"nvmlDeviceGetMemoryInfo(device({device}), version=nvmlMemory_v2)")
        assert {key: second[key] for key in ("total", "free", "used")} == info
