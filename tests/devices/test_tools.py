"""Devices that a vendor's tool lists, and the ways in which a tool fails."""

from __future__ import annotations

import json
import time

import pytest

from penstock.devices.discovery import survey
from penstock.devices.inventory import Health, NotAvailable
from penstock.devices.inventory.amd import AmdInventory
from penstock.devices.inventory.ascend import AscendInventory
from penstock.devices.inventory.tool import MOST_BYTES, ask

MIB, GIB = 1 << 20, 1 << 30

NPU_SMI = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc3.7               Version: 24.1.rc3.7                                           |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend910           | OK            | 178.5       36                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 42          0    / 0          57784/ 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | Alarm         | -           36                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          3195 / 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 2113          | python                   | 54000                   |
+===========================+===============+====================================================+
"""
NPU_SMI_310P = """\
| npu-smi 23.0.0                   Version: 23.0.0                                                |
| NPU     Name              | Health        | Power(W)     Temp(C)           Hugepages-Usage(page)|
| Chip    Device            | Bus-Id        | AICore(%)    Memory-Usage(MB)                       |
+===========================+===============+=====================================================+
| 8       310P3             | OK            | NA           51                0     / 0             |
| 0       0                 | 0000:09:00.0  | 7            1703 / 21534                            |
+===========================+===============+=====================================================+
"""


def gpus(*sections, wrapped):
    """JSON of amd-smi: since ROCm 7 in an object."""
    found = [{"gpu": number, **one} for number, one in enumerate(sections)]
    return json.dumps({"gpu_data": found} if wrapped else found, indent=4)


STATIC = {
    "asic": {"market_name": "AMD Instinct MI350X", "target_graphics_version": "gfx950"},
    "bus": {"bdf": "0000:05:00.0"},
    "driver": {"name": "amdgpu", "version": "6.18.3"},
    "vram": {"size": {"value": 294896, "unit": "MB"}},
}
METRIC = {
    "usage": {"gfx_activity": {"value": 42, "unit": "%"}, "umc_activity": "N/A"},
    "power": {"socket_power": {"value": 140, "unit": "W"}},
    "temperature": {"edge": "N/A", "hotspot": {"value": 47, "unit": "C"}},
    "mem_usage": {"used_vram": {"value": 285, "unit": "MB"}},
}


def amd_smi(machine, static, metric, names="[]"):
    for command, text in (("static", static), ("metric", metric), ("list", names)):
        (machine.bin / f"{command}.json").write_text(text)
    machine.tool("amd-smi", f'exec /bin/cat {machine.bin}/"$1".json')


def test_ascend_chips_are_read_from_the_table_with_n_a_kept(machine):
    machine.prints("npu-smi", NPU_SMI)
    found = AscendInventory(machine.root).look()
    assert found.unavailable is None
    first, second = found.devices
    assert (first.id, first.model, first.driver_version) == (
        "0000:9d:00.0", "Ascend910", "24.1.rc3.7",
    )  # fmt: skip
    assert (first.memory_used_bytes, first.memory_total_bytes) == (57784 * MIB, 64 * GIB)
    assert (first.busy_permille, first.temperature_celsius) == (420, 36)
    assert (first.power_milliwatts, first.health) == (178_500, Health("ok"))
    assert first.attributes == {"npu": "0", "chip": "0", "phy_id": "0"}
    assert isinstance(second.power_milliwatts, NotAvailable)  # the board's, told once
    assert second.health.state == "unhealthy"
    assert "Alarm" in second.health.reason


def test_ascend_chips_without_hbm_report_their_memory(machine):
    machine.prints("npu-smi", NPU_SMI_310P)
    (chip,) = AscendInventory(machine.root).look().devices
    assert (chip.memory_used_bytes, chip.memory_total_bytes) == (1703 * MIB, 21534 * MIB)
    assert isinstance(chip.power_milliwatts, NotAvailable)
    assert chip.busy_permille == 70


@pytest.mark.parametrize("wrapped", [False, True])
def test_amd_gpus_are_read_in_the_json_of_either_release(machine, wrapped):
    names = gpus({"bdf": "0000:05:00.0", "uuid": "aaff75a0-0000-1000-80bb"}, {}, wrapped=wrapped)
    static = gpus(STATIC, {"asic": "N/A", "vram": "N/A"}, wrapped=wrapped)
    metric = gpus(METRIC, {"usage": "N/A", "power": {"socket_power": "N/A"}}, wrapped=wrapped)
    amd_smi(machine, "WARNING: user is not in the render group\n" + static, metric, names)
    first, second = AmdInventory(machine.root).look().devices
    assert (first.id, first.bus_id) == ("aaff75a0-0000-1000-80bb", "0000:05:00.0")
    assert (first.model, first.architecture) == ("AMD Instinct MI350X", "gfx950")
    assert (first.memory_used_bytes, first.memory_total_bytes) == (285 * MIB, 294896 * MIB)
    assert (first.busy_permille, first.power_milliwatts) == (420, 140_000)
    assert (first.temperature_celsius, first.driver_version) == (47, "6.18.3")
    assert isinstance(first.health, NotAvailable)
    assert second.id == "gpu1"
    lacking = second.as_dict()["not_available"]
    assert {"memory_total_bytes", "busy_permille", "power_milliwatts", "bus_id"} <= set(lacking)
    assert all(one["why"] for one in lacking.values())


def test_a_figure_that_a_tool_lacks_is_n_a_with_the_reason(machine):
    amd_smi(machine, gpus(STATIC, wrapped=True), "")
    (gpu,) = AmdInventory(machine.root).look().devices
    assert gpu.memory_total_bytes == 294896 * MIB
    assert "no JSON" in gpu.busy_permille.why


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (None, "npu-smi is not installed"),
        ("echo dcmi module initialize failed. ret is -8005 >&2; exit 1", "ret is -8005"),
        ("echo '| 0 | ? |'; printf '\\377\\376\\0garbage'", "no known table"),
        ("exit 0", "its output begins with 'nothing'"),
        ("echo '+-+'; exec /bin/cat /dev/zero", "printed more than 8 MiB"),
        ("/bin/sleep 60 & exec /bin/sleep 60", "did not respond in time"),
        ("exec 1>&- 2>&-; exec /bin/sleep 60", "closed its output and did not end"),
    ],
)
def test_a_failing_tool_is_reported_and_its_devices_are_still_listed(machine, script, why):
    machine.pci("0000:81:00.0", 0x19E5, 0xD802, 0x120000, "devdrv_device_driver")
    machine.pci("0000:01:00.0", 0x19E5, 0x1711, 0x030000)  # that vendor's graphics chip
    if script is not None:
        machine.tool("npu-smi", script)
    begun = time.monotonic()
    found = AscendInventory(machine.root, timeout_s=1.0).look()
    assert time.monotonic() - begun < 20
    assert why in found.unavailable.why
    if script is None or ("no known table" not in why and "nothing" not in why):
        (chip,) = found.devices
        assert chip.id == "0000:81:00.0"
        assert why in chip.memory_total_bytes.why


def test_processes_that_a_hung_tool_started_are_ended_with_it(machine):
    pids = machine.bin / "pids"
    machine.tool("npu-smi", f"/bin/sleep 61 & echo $$ $! > {pids}; wait")
    assert "in time" in AscendInventory(machine.root, timeout_s=1.0).look().unavailable.why
    for pid in pids.read_text().split():
        deadline = time.monotonic() + 10
        while _runs(pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_tool_that_cannot_be_run_is_told_apart_from_a_missing_one(machine):
    machine.tool("npu-smi", "exit 0").chmod(0o644)
    assert "may not be run" in ask(["npu-smi"], package="it").why
    file = machine.tool("npu-smi", "exit 0")
    file.write_bytes(b"\x7fELF of another machine")
    assert "cannot be run" in ask(["npu-smi"], package="it").why


def test_tools_run_in_the_c_locale_without_input(machine):
    machine.tool("speak", 'echo "$LC_ALL $LANG"; read line || echo no input')
    assert ask(["speak"], package="it") == "C C\nno input\n"
    assert MOST_BYTES < 1 << 30


def test_torn_rows_are_counted_and_the_others_are_read(machine):
    rows = NPU_SMI.splitlines()
    torn = [*rows[:8], rows[9], *rows[11:]]  # the second chip's second row is missing
    machine.prints("npu-smi", "\n".join(torn))
    found = AscendInventory(machine.root).look()
    assert [one.id for one in found.devices] == ["0000:9d:00.0"]
    assert "1 rows" in found.unavailable.why


@pytest.mark.parametrize("text", ["[" * 100_000, '{"gpu_data": 7}', "[1, null]", '[{"gpu": "x"}]'])
def test_json_of_no_known_form_is_no_device_and_no_traceback(machine, text):
    amd_smi(machine, text, text)
    found = AmdInventory(machine.root).look()
    assert found.devices == ()
    assert found.unavailable.why


def test_all_kinds_of_devices_are_queried_in_parallel(machine):
    for tool in ("npu-smi", "amd-smi"):
        machine.tool(tool, "/bin/sleep 2; exit 1")
    begun = time.monotonic()
    kinds = [one.kind for one in survey(["ascend", "amd", "tpu"], root=machine.root)]
    assert kinds == ["ascend", "amd", "tpu"]
    assert time.monotonic() - begun < 3.8
