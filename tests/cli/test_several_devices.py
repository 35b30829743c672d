"""A tenant of several devices, with a quota of its own on each."""

from __future__ import annotations

import json
import sys

import pytest

SEEN = """
import ctypes, json
import pynvml
cuda, count, total = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_size_t()
code = cuda.cuInit(0)
cuda.cuDeviceGetCount(ctypes.byref(count))
memory = []
for ordinal in range(count.value):
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), ordinal)
    memory.append(total.value >> 20)
pynvml.nvmlInit()
handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
view = [pynvml.nvmlDeviceGetMemoryInfo(handle).total >> 20 for handle in handles]
print(json.dumps([code, memory, view]))
"""
NO_DEVICE = 100
GRANT = ["--device", "2,0", "--memory", "8Gi,500Mi", "--cores", "30,50"]


@pytest.fixture
def run(penstock):
    def go(*options: str, visible: str | None = None):
        setting = [] if visible is None else ["env", f"CUDA_VISIBLE_DEVICES={visible}"]
        command = [*setting, sys.executable, "-c", SEEN]
        return penstock("run", "--simulate", "l4,3", *options, "--", *command)

    return go


@pytest.mark.parametrize(
    ("visible", "memory"),
    [(None, [8192, 500]), ("1", [500]), ("1,0", [500, 8192]), ("2", []), ("", [])],
)
def test_each_device_has_its_own_quota_in_the_grants_order(run, visible, memory):
    result = run(*GRANT, visible=visible)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == [0 if memory else NO_DEVICE, memory, [8192, 500]]
    assert "8Gi and 30 cores of simulated device 2" in result.stderr
    assert "500Mi and 50 cores of simulated device 0" in result.stderr


def test_one_figure_applies_to_all_devices(run):
    result = run("--device", "2,0", "--memory", "1Gi", "--cores", "10")
    assert json.loads(result.stdout) == [0, [1024, 1024], [1024, 1024]]


@pytest.mark.parametrize(
    "options",
    [
        ["--device", "2,0", "--memory", "8Gi,1Gi,1Gi", "--cores", "30"],
        ["--device", "2,0", "--memory", "8Gi", "--cores", "10,20,30"],
        ["--memory", "8Gi,1Gi", "--cores", "30"],
    ],
)
def test_figures_without_a_device_each_are_refused(run, options):
    result = run(*options)
    assert result.returncode != 0
    assert result.stdout == ""
    assert "one per device in the order of --device" in result.stderr
