"""The doctor's findings about the driver: none, a real one without a device, strange ones."""

from __future__ import annotations

import re

CERTAINLY_OURS = "cuMemAlloc_v2"


def test_without_a_driver_the_doctor_says_so_and_looks_at_the_rest(doctor, tmp_path):
    report = doctor(LD_LIBRARY_PATH=str(tmp_path))
    assert report.code == 1
    found = report.one("driver")
    assert (found["status"], found["seen"]) == ("failure", "no libcuda.so.1 on this machine")
    assert "--simulate h200" in found["advice"]
    assert report.one("preload, CUDA")["status"] == "ok"
    assert "CUDA_ERROR_NO_DEVICE" in report.one("a tenant's first call")["seen"]


def test_a_driver_that_lacks_names_is_told_with_their_number(doctor, driver, shim_names):
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


def test_a_real_driver_without_a_device_is_looked_at_through_and_through(doctor, real_libcuda):
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
