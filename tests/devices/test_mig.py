"""MIG instances as devices, by real NVML calls to the simulated library."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from penstock.devices import Device, find_device
from penstock_shim import simulator

SCRIPT = """
import dataclasses, json
from penstock.devices.backends.nvidia import NvidiaDevices
source = NvidiaDevices()
devices = source.devices()
seen = {one.report.id: one.report.as_dict() for one in source.observe()}
print(json.dumps({
    "devices": [dataclasses.asdict(device) for device in devices],
    "seen": seen,
    "boards": [one.as_dict() for one in source.boards()],
    "processes": [len(source.processes(device)) for device in devices],
}), flush=True)
while input():
    after = [(one.report.id, str(one.report.health)) for one in source.observe()]
    print(json.dumps(after), flush=True)
"""


@pytest.fixture
def divided(tmp_path):
    with simulator.create_machine(tmp_path / "machine", "h200,2") as machine:
        instances = simulator.mig_instances(machine.devices()[0], "1g,2g,3g")
        machine.set_mig(instances, device=0)
        yield machine


def test_mig_instances_replace_their_divided_gpu(divided):
    program = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, **simulator.environment(divided.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        told = json.loads(program.stdout.readline())
        board, other = divided.devices()
        devices = told["devices"]
        assert [one["uuid"] for one in devices if one["parent"] is None] == [other.uuid]
        parts = [one for one in devices if one["parent"] == board.uuid]
        assert [one["profile"] for one in parts] == ["1g.18gb", "2g.35gb", "3g.70gb"]
        assert [one["memory_bytes"] * 8 // board.memory_bytes for one in parts] == [1, 2, 4]
        assert len({one["index"] for one in devices}) == 4
        assert told["processes"] == [0, 0, 0, 0]
        for part in parts:
            seen = told["seen"][part["uuid"]]
            assert part["uuid"].startswith("MIG-")
            assert (seen["parent"], seen["health"]["state"]) == (board.uuid, "ok")
            assert seen["busy_permille"] is None
            assert "bypasses the shim" in seen["not_available"]["busy_permille"]["fix"]
            assert seen["memory_total_bytes"] == part["memory_bytes"]
            assert (seen["attributes"]["checkpoint"], seen["simulated"]) == ("no", True)
        (whole,) = told["boards"]
        assert (whole["id"], whole["attributes"]["mig"]) == (board.uuid, "enabled")
        assert whole["busy_permille"] is None
        assert told["seen"][other.uuid]["attributes"]["mig"] == "disabled"
        # An error of the board is one of all its instances, and of no other device.
        divided.report_xid(95, device=0)
        health = look(program)
        assert all("XID 95" in health[part["uuid"]] for part in parts)
        assert health[other.uuid] == "ok"
        # One that is divided again loses its former instances.
        divided.lift(0)
        divided.set_mig(simulator.mig_instances(board, "1g"), device=0)
        health = look(program)
        assert [health[part["uuid"]].partition(":")[0] for part in parts] == ["ok", "lost", "lost"]
        program.stdin.write("\n")


def look(program):
    """The health of each device now, by UUID."""
    program.stdin.write("look\n")
    program.stdin.flush()
    return dict(json.loads(program.stdout.readline()))


def test_a_mig_instance_is_found_by_a_prefix_of_its_uuid():
    devices = [
        Device(i, f"MIG-{i}ab", "X MIG 1g.18gb", 1 << 30, 0, None, simulated=False, parent="GPU-0")
        for i in range(2)
    ]
    assert find_device(devices, "MIG-1").index == 1
    assert find_device(devices, "mig-0ab").index == 0


@pytest.mark.parametrize("words", ["1g,7g", "3g,3g,1g", "1g,", "5g", ""])
def test_mig_sizes_that_do_not_fit_are_refused(divided, words):
    with pytest.raises(simulator.SpecError):
        simulator.mig_instances(divided.devices()[0], words)
