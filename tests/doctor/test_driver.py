"""The doctor's findings about the driver: none, a real one without a device, strange ones."""

from __future__ import annotations

import os
import re

import pytest

from penstock.devices import DriverLibraries
from penstock.diagnostics.driver import look_at_driver
from penstock.diagnostics.preload import look_at_preload

CERTAINLY_OURS = "cuMemAlloc_v2"
MPS_ENABLED, INTEGRATED = 133, 18  # of CUdevice_attribute


def test_without_a_driver_the_doctor_says_so_and_looks_at_the_rest(doctor, tmp_path):
    report = doctor(LD_LIBRARY_PATH=str(tmp_path))
    assert report.code == 1
    found = report.one("driver")
    assert (found["status"], found["seen"]) == ("failure", "no libcuda.so.1 on this machine")
    assert "--simulate h200" in found["advice"]
    assert report.one("preload, CUDA")["status"] == "ok"
    assert "CUDA_ERROR_NO_DEVICE" in report.one("a tenant's first call")["seen"]


def test_a_driver_that_lacks_names_is_reported_with_their_number(doctor, driver, shim_names):
    folder = driver(CERTAINLY_OURS)
    report = doctor(LD_LIBRARY_PATH=str(folder))
    assert str(folder) in report.one("driver")["seen"]
    assert "CUDA 12.2" in report.one("driver")["seen"]
    found = report.one("names")
    assert found["status"] == "ok"
    lacking = int(re.search(r"(\d+) that this driver lacks", found["seen"])[1])
    assert lacking == len(shim_names) - 3


def test_a_name_that_the_shim_lacks_is_a_warning_that_names_it(doctor, driver):
    report = doctor(LD_LIBRARY_PATH=str(driver("cuTileAlloc")))
    warning = next(one for one in report.of("names") if one["status"] == "warning")
    assert "cuTileAlloc" in warning["seen"]
    assert "cannot start in a tenant" in warning["advice"]


def test_a_driver_without_a_device_is_a_failure(doctor, driver):
    report = doctor(LD_LIBRARY_PATH=str(driver(init=100)))
    assert "no device" in report.one("devices")["seen"]
    assert report.code == 1


def test_a_real_driver_without_a_device_is_examined_completely(doctor, real_libcuda):
    report = doctor(LD_LIBRARY_PATH=str(real_libcuda.parent))
    assert "CUDA 12.2" in report.one("driver")["seen"]
    assert report.one("names")["status"] == "ok"  # the shim exports all that it exports
    assert "no device" in report.one("devices")["seen"]
    assert report.one("preload, CUDA")["status"] == "ok"


def test_a_driver_that_does_not_start_is_a_failure_with_its_code(doctor, driver):
    found = doctor(LD_LIBRARY_PATH=str(driver(init=803))).one("devices")
    assert "error 803" in found["seen"]
    assert "one version" in found["advice"]


def test_a_file_that_is_no_library_is_not_taken_for_a_driver(doctor, tmp_path):
    (tmp_path / "libcuda.so.1").write_text("no library")
    report = doctor(LD_LIBRARY_PATH=str(tmp_path))
    assert report.one("driver")["status"] == "failure"


def test_a_wrong_mps_pipe_directory_is_a_warning(doctor, tmp_path):
    found = doctor(CUDA_MPS_PIPE_DIRECTORY=str(tmp_path / "nowhere")).one("MPS")
    assert found["status"] == "warning"
    assert "silently means no MPS" in found["advice"]


def with_attributes(devices: int, *attributes: int) -> str:
    """C source of a driver with so many devices that have exactly these attributes."""
    has = " || ".join(f"a == {one}" for one in (0, *attributes))
    return (
        f"int cuDeviceGetCount(int *n) {{ *n = {devices}; return 0; }}\n"
        "int cuDeviceGetAttribute(int *v, int a, int d) {\n"
        f"  (void)d; *v = {has}; return a == {MPS_ENABLED} && !*v ? 1 : 0;\n}}\n"
    )


def test_devices_without_memory_of_their_own_are_a_failure(doctor, driver):
    report = doctor(LD_LIBRARY_PATH=str(driver(init=0, text=with_attributes(2, INTEGRATED))))
    found = report.one("integrated devices")
    assert found["status"] == "failure"
    assert found["seen"].startswith("2:")
    assert report.code == 1


def test_devices_with_memory_of_their_own_are_not_called_integrated(driver):
    folder = driver(init=0, text=with_attributes(2))
    found = look_at_driver(DriverLibraries(f"{folder}/libcuda.so.1", ""), {}, simulated=False)
    assert [one for one in found if one.check == "integrated devices"] == []
    assert [one.seen for one in found if one.check == "devices"] == ["cuInit succeeds, 2 devices"]


def test_programs_that_are_clients_of_mps_are_a_warning(doctor, driver):
    folder = driver(init=0, text=with_attributes(1, MPS_ENABLED))
    found = doctor(LD_LIBRARY_PATH=str(folder)).one("MPS")
    assert found["status"] == "warning"
    assert "on 1 devices" in found["seen"]
    assert "CUDA_ERROR_NOT_SUPPORTED" in found["advice"]


@pytest.mark.parametrize("there", [True, False])
def test_a_simulated_driver_tells_whether_programs_are_clients_of_mps(doctor, tmp_path, there):
    if there:
        os.mkfifo(tmp_path / "control")
    report = doctor("--simulate", "h200", CUDA_MPS_PIPE_DIRECTORY=str(tmp_path))
    found = report.one("MPS")
    assert found["status"] == "warning"
    assert ("CUDA_ERROR_NOT_SUPPORTED" in found["advice"]) == there
    assert ("not running" in found["seen"]) != there


def test_names_of_a_newer_driver_that_the_shim_withholds_are_reported(driver):
    kept_back = ["cuGetProcAddress_v9", "cuMemAlloc_v9", "cuTileAlloc"]
    folder = driver(*kept_back, "cuTileQuery", "cuMemGetMood")
    libraries = DriverLibraries(str(folder / "libcuda.so.1"), "")
    told = [
        one
        for one in look_at_driver(libraries, {}, simulated=False)
        if one.check == "names kept back"
    ]
    assert len(told) == 1
    assert told[0].status == "warning"
    assert "for 3, which may" in told[0].seen
    assert told[0].seen.endswith(", ".join(kept_back))
    assert "may not start in a tenant" in told[0].advice


def test_names_that_only_read_something_are_not_withheld(driver):
    libraries = DriverLibraries(str(driver("cuTileQuery", "cuMemGetMood") / "libcuda.so.1"), "")
    found = look_at_driver(libraries, {}, simulated=False)
    assert [one for one in found if one.check == "names kept back"] == []


def test_a_newer_driver_that_programs_bring_along_is_reported(driver):
    machines, newer = driver(init=0, version="535.261.03"), driver(init=0, version="580.95.05")
    libraries = DriverLibraries(str(machines / "libcuda.so.1"), "")
    found = look_at_preload(libraries, [], {"LD_LIBRARY_PATH": str(newer)})
    told = [one for one in found if one.check == "forward compatibility"]
    assert [one.status for one in told] == ["ok"]
    assert str(newer / "libcuda.so.1") in told[0].seen


def test_a_driver_that_is_passed_over_is_a_warning_with_its_reason(driver, tmp_path):
    machines, older = driver(init=0, version="535.261.03"), driver(init=0, version="470.82.01")
    dangling = tmp_path / "dangling"
    dangling.mkdir()
    (dangling / "libcuda.so.1").symlink_to("libcuda.so.580.95.05")
    libraries = DriverLibraries(str(machines / "libcuda.so.1"), "")
    found = look_at_preload(libraries, [], {"LD_LIBRARY_PATH": f"{dangling}:{older}"})
    told = [one for one in found if one.check == "forward compatibility"]
    assert [one.status for one in told] == ["warning"]
    assert f"{dangling}/libcuda.so.1 is ignored: No such file" in told[0].seen
    assert "older than this machine's" in told[0].seen


def test_newer_drivers_are_not_mentioned_where_there_are_none(driver):
    machines = driver(init=0, version="535.261.03")
    libraries = DriverLibraries(str(machines / "libcuda.so.1"), "")
    found = look_at_preload(libraries, [], {"LD_LIBRARY_PATH": str(machines)})
    assert [one for one in found if one.check == "forward compatibility"] == []
