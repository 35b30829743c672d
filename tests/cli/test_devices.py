"""Devices behind one interface: the NVIDIA part speaks to any NVML, here to the simulated one."""

from __future__ import annotations

import json
import sys

import pytest

from penstock.devices import Device, find_device, find_devices
from penstock.devices.models import model_of
from penstock.model import PenstockError
from penstock_shim import simulator

SCRIPT = """
import dataclasses, json
from penstock.devices.backends.nvidia import NvidiaDevices
source = NvidiaDevices()
devices = source.devices()
print(json.dumps({
    "devices": [dataclasses.asdict(device) for device in devices],
    "libraries": dataclasses.asdict(source.libraries()),
    "processes": [process._asdict() for process in source.processes(devices[0])],
    "machine": source.machine,
}))
"""

DEVICES = [
    Device(i, f"GPU-{i}aaaaaaa-0000-0000-0000-000000000000", "X", 1 << 30, 0, None, simulated=False)
    for i in range(2)
]


def test_nvml_and_the_simulator_agree_about_a_device(penstock):
    result = penstock("simulate", "h200,2", "--", sys.executable, "-c", SCRIPT)
    told = json.loads(result.stdout)
    with simulator.Machine(penstock.state / "machines" / "h200x2") as machine:
        for ours, theirs in zip(told["devices"], machine.devices(), strict=True):
            for name in ("index", "uuid", "name", "memory_bytes"):
                assert ours[name] == getattr(theirs, name)
            assert ours["tflops"] == pytest.approx(theirs.tflops, rel=0.01)
    assert told["libraries"]["management"].endswith("/sim/libnvidia-ml.so.1")
    assert told["libraries"]["driver"].endswith("/sim/libcuda.so.1")
    assert (told["processes"], told["machine"]) == ([], None)


def test_nvml_shows_the_processes_of_a_device(penstock):
    script = (
        "import ctypes, os\n"
        "cuda = ctypes.CDLL('libcuda.so.1')\n"
        "context = ctypes.c_void_p()\n"
        "assert cuda.cuInit(0) == 0\n"
        "assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0\n" + SCRIPT
    )
    result = penstock("simulate", "h200", "--", sys.executable, "-c", script)
    (process,) = json.loads(result.stdout)["processes"]
    assert process["memory_bytes"] > 1 << 20
    assert process["busy_ns"] is None


@pytest.mark.parametrize("word", ["1", DEVICES[1].uuid, "GPU-1a", "1aaa", "gpu-1A"])
def test_a_device_is_named_by_index_by_uuid_or_by_a_unique_start_of_its_uuid(word):
    assert find_device(DEVICES, word) is DEVICES[1]


@pytest.mark.parametrize("word", ["2", "-1", "GPU-", "GPU-3", "", "a", "GPU-1aaaaaaab"])
def test_an_unknown_device_is_an_error_that_lists_the_known_ones(word):
    with pytest.raises(PenstockError, match=f"1 = {DEVICES[1].uuid}"):
        find_device(DEVICES, word)


def test_several_devices_are_named_with_commas_or_one_by_one():
    assert find_devices(DEVICES, ["1, 0"]) == find_devices(DEVICES, ["1", "0"]) == DEVICES[::-1]


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H200", 989.5),
        ("NVIDIA H100 PCIe", 756.5),
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA L40S", 362),
        ("NVIDIA L4", 121),
        ("Tesla T4", 65),
        ("NVIDIA T400", None),
        ("NVIDIA GeForce RTX 9999", None),
    ],
)
def test_rated_tflops_are_known_by_model_and_else_not_guessed(name, tflops):
    assert model_of(name).tflops == tflops
