"""Without a quota, or without a driver, CUDA says so, and the log says why."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from penstock_shim import paths
from penstock_shim._native import ffi

NOT_READY, NO_DEVICE, OK = 802, 100, 0


@pytest.fixture
def init_result(compile_c, make_tenant):
    program = compile_c("init.c", "-ldl")

    def run(tenant, **variables: str) -> int:
        environment = tenant.environment(**variables)
        done = subprocess.run(
            [program], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        return int(done.stdout)

    return run


def test_a_tenant_with_quota_and_driver_starts(init_result, make_tenant):
    assert init_result(make_tenant()) == OK


def test_without_a_tenant_cuinit_is_not_ready_and_the_log_says_what_to_do(init_result, make_tenant):
    tenant = make_tenant()
    assert init_result(tenant, PENSTOCK_TENANT_DIR="") == NOT_READY
    assert "penstock run" in tenant.log()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda quota: quota.unlink(), "/quota does not exist"),
        (lambda quota: os.truncate(quota, 100), "/quota is shorter"),
        (lambda quota: overwrite(quota, 0, b"\0" * 8), "/quota is not a page"),
        (lambda quota: overwrite(quota, 8, b"\x63"), "version 99, and this shim reads version 3"),
        (lambda quota: overwrite(quota, 8, b"\x01"), "version 1, and this shim reads version 3"),
        (lambda quota: overwrite(quota.with_name("usage"), 8, b"\x63"), "of version 99, and this"),
        (lambda quota: overwrite(quota, 12, b"\x01"), "version 3 but of another size"),
        (lambda quota: os.truncate(quota.with_name("usage"), 4096), "/usage is shorter"),
        (lambda quota: quota.with_name("usage").unlink(), "/usage does not exist"),
        (lambda quota: (quota.unlink(), quota.mkdir()), "not a regular file"),
        (lambda quota: (quota.rename(f"{quota}2"), quota.symlink_to(f"{quota}2")), "not a regular"),
        (lambda quota: set_device_count(quota, 0), "/quota holds a field that is out of bounds"),
        (lambda quota: set_device_count(quota, 17), "out of bounds"),
    ],
    ids=[
        "missing",
        "truncated",
        "wrong-magic",
        "newer-version",
        "older-version",
        "usage-of-another",
        "another-size",
        "truncated-usage",
        "no-usage",
        "a-directory",
        "a-link",
        "no-device",
        "too-many-devices",
    ],
)
def test_a_quota_page_that_cannot_be_read_keeps_cuda_shut(init_result, make_tenant, spoil, why):
    tenant = make_tenant()
    spoil(tenant.folder / "quota")
    assert init_result(tenant) == NOT_READY
    assert why in tenant.log()


def overwrite(path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def set_device_count(quota, count: int) -> None:
    """Sets the device count in both copies of the limits."""
    for copy in (0, 1):
        limits = ffi.offsetof("penstock_quota_page", "copies") + copy * ffi.sizeof(
            "penstock_limits"
        )
        offset = limits + ffi.offsetof("penstock_limits", "device_count")
        overwrite(quota, offset, count.to_bytes(4, "little"))


def test_a_page_that_may_not_be_read_keeps_cuda_shut(init_result, make_tenant):
    tenant = make_tenant()
    (tenant.folder / "quota").chmod(0)
    if os.access(tenant.folder / "quota", os.R_OK):  # root reads everything
        (tenant.folder / "quota").unlink()
        (tenant.folder / "quota").symlink_to("/proc/self/mem")
    assert init_result(tenant) == NOT_READY
    assert "no quota, so every CUDA call is refused" in tenant.log()


def test_every_reason_to_keep_cuda_shut_says_what_to_do(init_result, make_tenant):
    tenant = make_tenant()
    os.truncate(tenant.folder / "quota", 100)
    init_result(tenant)
    assert "start the program with `penstock run`, or see `penstock doctor`" in tenant.log()


def test_without_a_driver_there_is_no_device(init_result, make_tenant, tmp_path):
    tenant = make_tenant(driver=tmp_path / "libcuda.so.1")
    assert init_result(tenant) == NO_DEVICE
    assert re.search(r"names .*libcuda.so.1, which cannot be opened", tenant.log())


def test_the_shim_never_takes_itself_for_the_driver(init_result, make_tenant, tmp_path):
    copy = tmp_path / "libcuda.so.1"
    copy.write_bytes(paths.so_path().read_bytes())
    for driver in (paths.so_path(), copy):
        assert init_result(make_tenant(driver=driver)) == NO_DEVICE


def test_a_page_that_appears_a_little_late_is_waited_for(compile_c, make_tenant):
    tenant = make_tenant()
    quota, aside = tenant.folder / "quota", tenant.folder / "aside"
    quota.rename(aside)
    program = compile_c("init.c", "-ldl")
    with subprocess.Popen(
        [program, "announce"], env=tenant.environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "now\n"
        aside.rename(quota)
        assert int(process.stdout.readline()) == OK
