"""Under MPS kernels of several programs overlap: shares of a device's time are refused there."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

OK, NOT_SUPPORTED = 0, 801


@pytest.fixture
def pipes(tmp_path) -> Path:
    """The directory of a control daemon."""
    folder = tmp_path / "mps"
    folder.mkdir()
    os.mkfifo(folder / "control")
    return folder


@pytest.fixture
def init(compile_c):
    program = compile_c("init.c", "-ldl")

    def run(tenant, **variables: str | Path) -> int:
        environment = tenant.environment(**{name: str(one) for name, one in variables.items()})
        done = subprocess.run(
            [program], env=environment, capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    return run


def share(tenant, *permille: int) -> None:
    def edit(limits):
        devices = tuple(
            dataclasses.replace(device, cores_permille=one)
            for device, one in zip(limits.devices, permille, strict=True)
        )
        return dataclasses.replace(limits, devices=devices)

    tenant.quota.change(edit)


def test_a_share_of_a_devices_time_is_refused_to_a_client_of_mps(init, make_tenant, pipes):
    tenant = make_tenant()
    share(tenant, 999)
    assert init(tenant, CUDA_MPS_PIPE_DIRECTORY=pipes) == NOT_SUPPORTED
    assert "device 0 is shared through MPS: a share of its time (999 of 1000" in tenant.log()
    assert "CUDA_MPS_PIPE_DIRECTORY to an empty directory, or grant all" in tenant.log()


def test_all_of_a_devices_time_and_a_quota_of_memory_are_served(init, make_tenant, pipes):
    tenant = make_tenant()
    share(tenant, 1000)
    assert init(tenant, CUDA_MPS_PIPE_DIRECTORY=pipes) == OK
    assert "MPS" not in tenant.log()


@pytest.mark.parametrize("there", ["nothing", "file", "socket"])
def test_only_the_pipe_of_a_control_daemon_makes_a_client(init, make_tenant, tmp_path, there):
    folder = tmp_path / there
    folder.mkdir()
    if there == "file":
        (folder / "control").touch()
    listener = socket.socket(socket.AF_UNIX)
    if there == "socket":
        listener.bind(str(folder / "control"))
    tenant = make_tenant()
    share(tenant, 500)
    with listener:
        expected = NOT_SUPPORTED if there == "socket" else OK
        assert init(tenant, CUDA_MPS_PIPE_DIRECTORY=folder) == expected


@pytest.mark.parametrize("granted", [500, 1000])
def test_a_driver_that_does_not_tell_is_judged_by_the_pipe(  # noqa: PLR0917
    init, make_tenant, compile_c, pipes, tmp_path, granted
):
    """Before CUDA 12.2 there was no attribute."""
    driver = compile_c("older_driver.c", "-shared", "-fPIC", name="libcuda-older.so")
    tenant = make_tenant(driver=driver)
    share(tenant, granted)
    environment = {"CUDA_MPS_PIPE_DIRECTORY": pipes, "OLDER_DRIVER_UUID": uuid_of(tenant)}
    assert init(tenant, **environment) == (OK if granted == 1000 else NOT_SUPPORTED)
    environment["CUDA_MPS_PIPE_DIRECTORY"] = tmp_path / "nowhere"
    assert init(tenant, **environment) == OK


def uuid_of(tenant) -> str:
    return tenant.quota.limits.devices[0].uuid.removeprefix("GPU-").replace("-", "")
