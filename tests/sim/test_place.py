"""A machine that is mounted beside the simulated libraries counts before the environment."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from penstock_shim import paths, simulator

COUNT = """
import ctypes, sys
names = "libcuda.so.1", "libnvidia-ml.so.1"
cuda, nvml = (ctypes.CDLL(f"{sys.argv[1]}/{name}") for name in names)
found, context = ctypes.c_int(), ctypes.c_void_p()
codes = [cuda.cuInit(0), nvml.nvmlInit_v2()]
cuda.cuDeviceGetCount(ctypes.byref(found))
counts = [found.value]
nvml.nvmlDeviceGetCount_v2(ctypes.byref(found))
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
print(codes, [*counts, found.value])
"""


@pytest.fixture
def beside(tmp_path):
    """The simulated libraries with a machine of two devices and a tag beside them."""
    folder = tmp_path / "driver"
    shutil.copytree(paths.sim_dir(), folder)
    simulator.create_machine(folder / "machine", "h200,2").close()
    (folder / "tag").write_text("mounted\n")
    return folder


def count(folder, tmp_path, **variables: str) -> str:
    simulator.create_machine(tmp_path / "other", "h200").close()
    command = [sys.executable, "-c", COUNT, str(folder)]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout


def test_the_machine_and_tag_beside_the_library_are_taken(beside, tmp_path):
    other = {"PENSTOCK_SIM_MACHINE": str(tmp_path / "other"), "PENSTOCK_SIM_TAG": "chosen"}
    assert count(beside, tmp_path, **other) == "[0, 0] [2, 2]\n"
    assert count(beside, tmp_path) == "[0, 0] [2, 2]\n"
    with simulator.Machine(beside / "machine") as machine:
        assert {record.tag for record in machine.record(0)} == {"mounted"}
    with simulator.Machine(tmp_path / "other") as machine:
        assert list(machine.record(0)) == []


def test_a_mounted_machine_that_is_broken_is_not_replaced_by_another(beside, tmp_path):
    (beside / "machine").write_bytes(b"")
    other = {"PENSTOCK_SIM_MACHINE": str(tmp_path / "other")}
    codes = count(beside, tmp_path, **other).split("]")[0]
    assert codes == "[100, 9", "no device; driver not loaded"
