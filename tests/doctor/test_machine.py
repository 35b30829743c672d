"""Checks that need no particular driver: environment, state directory, pages, the program."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock_shim import simulator
from penstock_shim.pages import DeviceLimit, Limits, QuotaWriter, UsagePage

if TYPE_CHECKING:
    from pathlib import Path

MAIN = "int main(void) { return 0; }\n"
UUID = "GPU-12345678-1234-1234-1234-123456789abc"


def test_on_a_simulated_gpu_all_is_well(doctor):
    report = doctor("--simulate", "h200,2")
    assert [one for one in report.findings if one["status"] == "failure"] == []
    assert report.code == 0
    assert "simulated" in report.one("driver")["seen"]
    assert report.one("devices")["seen"] == "cuInit succeeds, 2 devices"
    assert "glibc" in report.one("libc")["seen"]
    assert "2 devices" in report.one("a tenant's first call")["seen"]


def test_a_device_that_must_be_reset_is_a_failure_that_says_so(doctor, tmp_path):
    with simulator.create_machine(tmp_path / "machine", "l4,2") as machine:
        machine.report_xid(31, device=0)  # a program's fault
        report = doctor(PENSTOCK_SIM_MACHINE=str(machine.path))
        assert report.one("accelerators")["seen"] == "2 simulated: NVIDIA L4"
        machine.report_xid(79, device=1)
        found = doctor(PENSTOCK_SIM_MACHINE=str(machine.path)).one("accelerators")
        assert found["status"] == "failure"
        assert (
            f"{machine.devices()[1].uuid} is unhealthy: the driver asks for a GPU reset"
            in (found["seen"])
        )


def test_every_door_is_tried_and_leads_to_the_shim(doctor):
    report = doctor("--simulate", "h200")
    for library in ("CUDA", "NVML"):
        seen = report.one(f"preload, {library}")["seen"]
        for door in ("dlopen by name", "dlopen by path", "without the .1", "dlmopen", "linking"):
            assert door in seen


def test_the_table_fits_80_columns_and_says_what_to_do(raw_doctor):
    done = raw_doctor(NO_COLOR="1")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "--simulate h200" in done.stdout
    assert lines[-1].endswith("checks")
    assert done.returncode == 1


def test_a_profile_that_does_not_exist_is_refused(raw_doctor):
    done = raw_doctor("--simulate", "h2000")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_other_preloads_are_named(doctor, compile_c):
    other = compile_c("int nothing;\n", "libother.so", "-shared", "-fPIC")
    found = doctor("--simulate", "h200", LD_PRELOAD=str(other)).one("other preloads")
    assert found["status"] == "warning"
    assert str(other) in found["seen"]


def test_a_sanitizer_among_the_preloads_gets_its_own_advice(doctor, compile_c):
    other = compile_c("int nothing;\n", "libasan.so.8", "-shared", "-fPIC")
    found = doctor("--simulate", "h200", LD_PRELOAD=str(other)).one("other preloads")
    assert "verify_asan_link_order=0" in found["advice"]


def test_a_preload_that_takes_the_shims_place_is_a_failure(tmp_path, compile_c):
    """The loader knows another library as libcuda.so.1, because that was preloaded first."""
    from penstock.devices import DriverLibraries  # noqa: PLC0415
    from penstock.diagnostics import preload  # noqa: PLC0415

    text = "int cuInit(unsigned flags) { (void)flags; return 0; }\n"
    thief = compile_c(text, "libthief.so", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
    findings = preload.look_at_preload(DriverLibraries(str(thief), ""), [], {}, first=[str(thief)])
    (cuda,) = [one for one in findings if one.check == "preload, CUDA"]
    assert cuda.status == "failure"
    assert "other" in cuda.seen
    assert "bypass the quota" in cuda.advice


def test_a_state_directory_that_others_can_write_is_a_failure(doctor, state):
    state.mkdir()
    state.chmod(0o777)
    found = doctor().one("state directory")
    assert found["status"] == "failure"
    assert "--state-dir" in found["advice"]


def test_a_state_directory_that_is_not_there_is_not_made(doctor, state):
    assert doctor().one("state directory")["status"] == "ok"
    assert not state.exists()


@pytest.fixture
def tenant(state) -> Path:
    """A tenant's pages, without a supervisor."""
    folder = state / "tenants" / "t"
    folder.mkdir(parents=True)
    for each in (state, state / "tenants", folder):
        each.chmod(0o700)
    limits = Limits(devices=(DeviceLimit(uuid=UUID, memory_bytes=1 << 30),))
    QuotaWriter.create(folder / "quota", limits, tenant="t").close()
    UsagePage.create(folder / "usage").close()
    return folder


def test_intact_pages_are_reported_as_intact_even_without_a_supervisor(doctor, tenant):
    found = doctor().one("tenant t")
    assert found["status"] == "warning"
    assert "neither a penstock run nor an agent supervises it" in found["seen"]


@pytest.mark.parametrize("page", ["quota", "usage"])
def test_a_page_that_others_can_write_is_a_failure(doctor, tenant, page):
    (tenant / page).chmod(0o666)
    found = doctor().one("tenant t")
    assert found["status"] == "failure"
    assert f"chmod 600 {tenant / page}" in found["advice"]


@pytest.mark.parametrize("page", ["quota", "usage"])
def test_a_page_of_another_version_is_a_failure_that_names_both(doctor, tenant, page):
    with (tenant / page).open("r+b") as stream:
        stream.seek(8)
        stream.write(struct.pack("<I", 1))
    found = doctor().one("tenant t")
    assert found["status"] == "failure"
    assert "version 1; this release reads version 3 and the one before" in found["seen"]
    assert "the release that wrote it" in found["advice"]


def test_a_truncated_page_is_a_failure(doctor, tenant):
    os.truncate(tenant / "usage", 4096)
    assert "shorter" in doctor().one("tenant t")["seen"]


def test_an_ordinary_program_can_be_preloaded(doctor):
    found = doctor("--simulate", "h200", "--", sys.executable).one("program")
    assert found["status"] == "ok"


def test_a_static_program_is_a_failure(doctor, compile_c):
    program = compile_c(MAIN, "static", "-static")
    found = doctor("--", str(program)).one("program")
    assert found["status"] == "failure"
    assert "statically" in found["seen"]


def test_a_musl_program_is_a_failure(doctor, compile_c, musl_gcc):
    program = compile_c(MAIN, "musl", compiler=musl_gcc)
    found = doctor("--", str(program)).one("program")
    assert found["status"] == "failure"
    assert "musl" in found["seen"]
    assert "glibc" in found["advice"]


def test_a_setgid_program_is_a_failure(doctor, compile_c):
    program = compile_c(MAIN, "setgid")
    program.chmod(0o2755)
    found = doctor("--", str(program)).one("program")
    assert found["status"] == "failure"
    assert "setgid" in found["seen"]


def test_a_script_is_judged_by_its_interpreter(doctor, compile_c, tmp_path):
    program = compile_c(MAIN, "static", "-static")
    script = tmp_path / "script"
    script.write_text(f"#!{program}\n")
    script.chmod(0o755)
    assert str(program) in doctor("--", str(script)).one("program")["seen"]


def test_a_program_with_a_sanitizer_gets_its_advice(doctor, compile_c):
    program = compile_c(MAIN, "sanitized", "-fsanitize=address")
    found = doctor("--simulate", "h200", "--", str(program)).one("program")
    assert found["status"] == "warning"
    assert "verify_asan_link_order=0" in found["advice"]


def test_a_program_with_a_sanitizer_runs_under_a_quota_as_advised(compile_c, state):
    program = compile_c(MAIN, "sanitized", "-fsanitize=address")
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "run", "--simulate=h200", "--memory=1Gi", "--cores=10",
         "--", program],
        env={**os.environ, "PENSTOCK_STATE_DIR": str(state),
             "ASAN_OPTIONS": "verify_asan_link_order=0"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "verify_asan_link_order=0" in done.stderr


def test_penstock_run_says_that_a_static_program_has_no_quota(compile_c, state):
    program = compile_c(MAIN, "static", "-static")
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "run", "--simulate=h200", "--memory=1Gi", "--cores=10",
         "--", program],
        env={**os.environ, "PENSTOCK_STATE_DIR": str(state)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert "no quota would hold" in done.stderr


def test_a_program_that_is_not_there_is_a_failure(doctor):
    assert "not found" in doctor("--", "no-such-program").one("program")["seen"]


def test_a_shell_inside_a_tenant_is_reported(doctor, tmp_path):
    found = doctor("--simulate", "h200", PENSTOCK_TENANT_DIR=str(tmp_path)).one("this shell")
    assert found["status"] == "warning"


def test_nothing_is_left_behind(doctor, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    doctor("--simulate", "h200", TMPDIR=str(scratch))
    assert list(scratch.iterdir()) == []
    assert shutil.which("penstock-probe") is None
