"""NVML inside a tenant: the granted devices, by no name any other."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from penstock_shim import pages

GIB = 1 << 30
INVALID_ARGUMENT, NO_PERMISSION, NOT_FOUND, UNINITIALIZED = 2, 4, 6, 1
ARGUMENT_VERSION_MISMATCH = 25


@pytest.fixture
def tenant(box):
    return box.tenant("a", (2, 8 * GIB), (0, 4 * GIB))


def test_devices_are_those_of_the_grant_in_its_order(box, tenant):
    nvml = box.nvml(tenant)
    assert nvml("nvmlDeviceGetCount()") == 2
    for index, granted in enumerate([2, 0]):
        assert nvml(f"nvmlDeviceGetUUID(device({index}))") == box.devices[granted].uuid
        assert nvml(f"nvmlDeviceGetIndex(device({index}))") == index


def test_other_devices_are_not_found_by_any_name(box, tenant):
    outside = box.nvml()
    bus = outside("nvmlDeviceGetPciInfo(device(1)).busId")
    nvml = box.nvml(tenant)
    assert nvml.error("nvmlDeviceGetHandleByIndex(2)") == INVALID_ARGUMENT
    assert nvml.error(f"nvmlDeviceGetHandleByUUID('{box.devices[1].uuid}')") == NOT_FOUND
    assert nvml.error(f"nvmlDeviceGetHandleByPciBusId('{bus}')") == NOT_FOUND
    bus = outside("nvmlDeviceGetPciInfo(device(2)).busId")
    granted = f"nvmlDeviceGetIndex(nvmlDeviceGetHandleByPciBusId('{bus}'))"
    assert nvml(granted) == 0


def test_the_quota_is_the_total(box, tenant):
    nvml = box.nvml(tenant)
    for index, quota in enumerate([8 * GIB, 4 * GIB]):
        info = nvml(f"nvmlDeviceGetMemoryInfo(device({index}))")
        assert info == {"total": quota, "free": quota, "used": 0}
    second = nvml("nvmlDeviceGetMemoryInfo(device(0), version=nvmlMemory_v2)")
    assert (second["total"], second["free"], second["reserved"]) == (8 * GIB, 8 * GIB, 0)


def test_a_changed_quota_is_the_total_at_once(box, tenant):
    nvml = box.nvml(tenant)
    nvml("nvmlDeviceGetMemoryInfo(device(0))")
    with pages.QuotaWriter.open(tenant / "quota") as writer:
        devices = writer.limits.devices
        smaller = pages.DeviceLimit(uuid=devices[0].uuid, memory_bytes=GIB)
        writer.update(pages.Limits(devices=(smaller, devices[1])))
    assert nvml("nvmlDeviceGetMemoryInfo(device(0))")["total"] == GIB


def test_a_quota_above_the_device_shows_the_device(box):
    nvml = box.nvml(box.tenant("huge", (0, 1 << 40)))
    info = nvml("nvmlDeviceGetMemoryInfo(device(0))")
    assert info["total"] == box.devices[0].memory_bytes
    assert info["free"] == info["total"] - box.machine.usage(0).memory_used_bytes


def test_errors_are_the_librarys_own(box, tenant):
    nvml = box.nvml(tenant, initialise=False)
    assert nvml.error("nvmlDeviceGetCount()") == UNINITIALIZED
    assert nvml.error("nvmlDeviceGetHandleByIndex(0)") == UNINITIALIZED
    assert nvml.error("nvmlDeviceGetHandleByIndex(9)") == UNINITIALIZED
    nvml("nvmlInit()")
    assert nvml.error("nvmlDeviceGetMemoryInfo(None)") == INVALID_ARGUMENT
    wrong_version = "nvmlDeviceGetMemoryInfo(device(0), version=1)"
    assert nvml.error(wrong_version) == ARGUMENT_VERSION_MISMATCH


@pytest.mark.parametrize("directory", ["", "/nowhere"])
def test_without_a_tenant_everything_is_refused(box, tenant, directory):
    nvml = box.nvml(tenant, initialise=False, PENSTOCK_TENANT_DIR=directory)
    assert nvml.error("nvmlInit()") == NO_PERMISSION
    assert nvml.error("nvmlDeviceGetCount()") == NO_PERMISSION
    assert nvml.error("nvmlSystemGetDriverVersion()") == NO_PERMISSION


def test_a_damaged_quota_page_is_no_tenant_and_the_log_says_why_once(box, tenant):
    (tenant / "quota").write_bytes(b"x" * 100)
    log = box.folder / "log"
    nvml = box.nvml(tenant, initialise=False, PENSTOCK_LOG=str(log))
    assert nvml.error("nvmlInit()") == NO_PERMISSION
    assert nvml.error("nvmlInit()") == NO_PERMISSION
    [line] = [line for line in log.read_text().splitlines() if "NVML" in line]
    assert str(tenant) in line
    assert "is not a page of this kind" in line


def test_a_missing_nvml_is_reported_as_missing(box):
    folder = box.folder / "without"
    folder.mkdir()
    limits = pages.Limits(devices=(pages.DeviceLimit(uuid=box.devices[0].uuid, memory_bytes=GIB),))
    pages.QuotaWriter.create(
        folder / "quota", limits, tenant="without", nvml_path="/nowhere/libnvidia-ml.so.1"
    ).close()
    pages.UsagePage.create(folder / "usage").close()
    library_not_found = 12
    assert box.nvml(folder, initialise=False).error("nvmlInit()") == library_not_found


def test_tools_see_the_grant(box, tenant):
    gpus = json.loads(box.tool("gpustat", "--json", tenant=tenant))["gpus"]
    assert [gpu["uuid"] for gpu in gpus] == [box.devices[2].uuid, box.devices[0].uuid]
    assert [gpu["memory.total"] for gpu in gpus] == [8192, 4096]
    screen = box.tool("nvitop", "-1", tenant=tenant)
    assert "8192MiB" in screen
    assert "4096MiB" in screen
    assert "140.4GiB" not in screen


@pytest.mark.parametrize("name", ["libnvidia-ml.so.1", "libnvidia-ml.so", "absolute"])
def test_every_way_of_opening_nvml_leads_to_the_view(box, tenant, name):
    environment = {**os.environ, **box.environment(tenant=tenant)}
    folder = environment["LD_LIBRARY_PATH"].split(":")[0]
    code = (
        "import ctypes, sys; l = ctypes.CDLL(sys.argv[1]); n = ctypes.c_uint(); "
        "assert l.nvmlInit_v2() == 0; l.nvmlDeviceGetCount_v2(ctypes.byref(n)); print(n.value)"
    )
    path = f"{folder}/libnvidia-ml.so.1" if name == "absolute" else name
    done = subprocess.run(
        [sys.executable, "-c", code, path],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "2\n", done.stderr


def test_the_child_of_a_fork_sees_the_same(box, tenant):
    nvml = box.nvml(tenant)
    code = (
        "[os.waitpid(pid, 0)[1] for pid in [os.fork()] if pid or "
        "os._exit(nvmlDeviceGetCount() + 40)][0] >> 8"
    )
    assert nvml(code) == 42


def test_threads_that_come_first_at_once_see_the_same(box, tenant):
    nvml = box.nvml(tenant, initialise=False)
    code = (
        "[list(pool.map(lambda _: (lib.nvmlInit_v2(), lib.nvmlDeviceGetCount_v2(byref(n)), "
        "n.value), range(64))) for lib, n in [(CDLL('libnvidia-ml.so.1'), c_uint())] "
        "for pool in [__import__('concurrent.futures').futures.ThreadPoolExecutor(16)]][0]"
    )
    assert nvml(code) == [[0, 0, 2]] * 64
