"""The simulated NVML without work on the devices: handles, names, errors."""

from __future__ import annotations

import json

import pytest

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED = 1, 2, 3
NOT_FOUND, INSUFFICIENT_SIZE, DRIVER_NOT_LOADED, GPU_IS_LOST = 6, 7, 9, 15


def test_a_machine_without_gpu_has_no_driver(box):
    nvml = box.nvml(initialise=False, PENSTOCK_SIM_MACHINE="")
    assert nvml.error("nvmlInit()") == DRIVER_NOT_LOADED


def test_nothing_works_before_init_and_after_the_last_shutdown(box):
    nvml = box.nvml(initialise=False)
    assert nvml.error("nvmlDeviceGetCount()") == UNINITIALIZED
    assert nvml.error("nvmlShutdown()") == UNINITIALIZED
    nvml("nvmlInit()")
    nvml("nvmlInit()")
    nvml("nvmlShutdown()")
    assert nvml("nvmlDeviceGetCount()") == 3
    nvml("nvmlShutdown()")
    assert nvml.error("nvmlDeviceGetCount()") == UNINITIALIZED
    nvml("nvmlInit()")
    assert nvml("nvmlDeviceGetCount()") == 3


def test_every_device_is_found_by_each_of_its_names(box):
    nvml = box.nvml()
    for device in box.devices:
        this = f"device({device.index})"
        assert nvml(f"nvmlDeviceGetName({this})") == device.name
        assert nvml(f"nvmlDeviceGetUUID({this})") == device.uuid
        bus = nvml(f"nvmlDeviceGetPciInfo({this}).busId")
        by_uuid = f"nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID('{device.uuid}'))"
        by_bus = f"nvmlDeviceGetIndex(nvmlDeviceGetHandleByPciBusId('{bus}'))"
        assert nvml(by_uuid) == nvml(by_bus) == device.index


def test_names_of_no_device_are_not_found(box):
    nvml = box.nvml()
    assert nvml.error("nvmlDeviceGetHandleByIndex(3)") == INVALID_ARGUMENT
    assert nvml.error("nvmlDeviceGetHandleByUUID('GPU-0')") == NOT_FOUND
    assert nvml.error("nvmlDeviceGetHandleByPciBusId('0000:ff:00.0')") == NOT_FOUND
    assert nvml.error("nvmlDeviceGetHandleByPciBusId('nonsense')") == INVALID_ARGUMENT


def test_an_invalid_handle_is_an_invalid_argument(box):
    nvml = box.nvml()
    assert nvml.error("nvmlDeviceGetName(None)") == INVALID_ARGUMENT
    assert nvml.error("nvmlDeviceGetMemoryInfo(c_void_p(12345))") == INVALID_ARGUMENT


def test_a_name_that_does_not_fit_is_an_insufficient_size(box):
    nvml = box.nvml()
    call = "_nvmlGetFunctionPointer('nvmlDeviceGetUUID')(device(0), create_string_buffer(8), 8)"
    assert nvml(call) == INSUFFICIENT_SIZE


def test_the_driver_reserve_is_counted_in_the_two_ways_of_the_real_library(box):
    nvml = box.nvml()
    usage = box.machine.usage(0)
    first = nvml("nvmlDeviceGetMemoryInfo(device(0))")
    second = nvml("nvmlDeviceGetMemoryInfo(device(0), version=nvmlMemory_v2)")
    assert first["total"] == second["total"] == box.devices[0].memory_bytes
    assert first["used"] == second["reserved"] == usage.memory_used_bytes > 0
    assert second["used"] == 0
    assert first["free"] == second["free"] == first["total"] - first["used"]


def test_a_lost_device_says_so_and_the_others_go_on(box):
    nvml = box.nvml()
    nvml("device(1)")
    box.machine.inject("device-lost", device=1)
    assert nvml.error("nvmlDeviceGetMemoryInfo(device(1))") == GPU_IS_LOST
    assert nvml("nvmlDeviceGetMemoryInfo(device(0))")["used"] > 0
    box.machine.lift(1)
    assert nvml("nvmlDeviceGetMemoryInfo(device(1))")["used"] > 0


@pytest.mark.parametrize("box", ["h200", "a100-80g", "l4", "t4"], indirect=True)
def test_the_board_is_the_profiles(box):
    nvml = box.nvml()
    device = box.devices[0]
    assert nvml("nvmlDeviceGetCudaComputeCapability(device(0))") == list(device.compute_capability)
    limit_mw = nvml("nvmlDeviceGetEnforcedPowerLimit(device(0))")
    assert 0 < nvml("nvmlDeviceGetPowerUsage(device(0))") < limit_mw
    assert nvml("nvmlDeviceGetMaxClockInfo(device(0), NVML_CLOCK_SM)") > 1000


def test_features_that_a_data_centre_board_lacks_are_not_supported(box):
    nvml = box.nvml()
    assert nvml.error("nvmlDeviceGetFanSpeed(device(0))") == NOT_SUPPORTED
    assert nvml.error("nvmlDeviceGetMigMode(device(0))") == NOT_SUPPORTED


def test_an_idle_device_has_no_processes_and_no_samples(box):
    nvml = box.nvml()
    assert nvml("nvmlDeviceGetComputeRunningProcesses(device(0))") == []
    assert nvml("nvmlDeviceGetUtilizationRates(device(0))") == {"gpu": 0, "memory": 0}
    assert nvml.error("nvmlDeviceGetProcessUtilization(device(0), 0)") == NOT_FOUND


def test_gpustat_and_nvitop_run_on_the_simulated_machine(box):
    gpus = json.loads(box.tool("gpustat", "--json"))["gpus"]
    assert [gpu["uuid"] for gpu in gpus] == [device.uuid for device in box.devices]
    assert {gpu["memory.total"] for gpu in gpus} == {143771}
    assert box.tool("nvitop", "-1").count("140.4GiB") == 3
