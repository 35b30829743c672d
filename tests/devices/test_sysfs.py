"""Devices that the kernel lists: TPU, BPU, FPGA, and this machine's processors."""

from __future__ import annotations

import os
import platform
import threading

from penstock.devices.discovery import survey
from penstock.devices.inventory import Health, NotAvailable
from penstock.devices.inventory.bpu import BpuInventory
from penstock.devices.inventory.cpu import CpuInventory
from penstock.devices.inventory.fpga import FpgaInventory
from penstock.devices.inventory.tpu import TpuInventory

GOOGLE = 0x1AE0


def test_tpus_are_found_with_the_node_that_programs_open(machine):
    card = machine.pci("0000:00:04.0", GOOGLE, 0x0063, 0xFF0000, "vfio-pci")
    (card / "iommu_group").symlink_to("../../../kernel/iommu_groups/3")
    accel = machine.pci("0000:00:05.0", GOOGLE, 0x005E, 0x088000, "gasket")
    machine.file("dev/accel0", "")
    (machine.root / "sys/class/accel/accel0").mkdir(parents=True)
    (machine.root / "sys/class/accel/accel0/device").symlink_to(accel)
    machine.pci("0000:00:06.0", GOOGLE, 0x0062, 0xFF0000)  # no driver
    machine.pci("0000:00:07.0", GOOGLE, 0x0042, 0x020000)  # its network card
    v5e, v4, v5p = TpuInventory(machine.root).look().devices
    assert (v5e.model, v5e.attributes["node"]) == ("TPU v5e", "/dev/vfio/3")
    assert (v4.model, v4.attributes["node"]) == ("TPU v4", "/dev/accel0")
    assert v5p.health == Health("lost", "no driver is bound to it")
    assert "tpu-info" in v5e.busy_permille.fix


def test_bpu_cores_report_their_use(machine):
    for core, ratio in (("bpu0", "37\n"), ("bpu1", "Verlust\n"), ("bpu10", "0")):
        machine.file(f"sys/devices/system/bpu/{core}/ratio", ratio)
        machine.file(f"sys/devices/system/bpu/{core}/power_enable", "0" if core == "bpu10" else "1")
    machine.file("sys/devices/system/bpu/bpu_dev/ratio", "99")
    first, second, last = BpuInventory(machine.root).look().devices
    assert (first.busy_permille, first.index, last.index) == (370, 0, 10)
    assert "Verlust" in second.busy_permille.why
    assert last.health.state == "unhealthy"


def test_fpga_managers_and_cards_are_each_listed_once(machine):
    card = machine.pci("0000:3b:00.0", 0x8086, 0x0B2B, 0x120000, "dfl-pci")
    machine.pci("0000:5e:00.0", 0x10EE, 0x5020, 0x120000, "xocl")
    machine.pci("0000:5f:00.0", 0x10EE, 0x9038, 0x070001)  # a Xilinx chip that is no accelerator
    machine.file("sys/class/fpga_manager/fpga0/name", "Xilinx Zynq FPGA Manager\n")
    machine.file("sys/class/fpga_manager/fpga0/state", "operating\n")
    machine.file("sys/class/fpga_manager/fpga1/name", "Intel FPGA Manager\n")
    machine.file("sys/class/fpga_manager/fpga1/state", "write error\n")
    (machine.root / "sys/class/fpga_manager/fpga1/device").symlink_to(card)
    (machine.root / "sys/class/fpga_region/region0").mkdir(parents=True)
    zynq, intel, xilinx = FpgaInventory(machine.root).look().devices
    assert (zynq.id, zynq.health) == ("fpga0", Health("ok"))
    assert isinstance(zynq.bus_id, NotAvailable)
    assert (intel.bus_id, intel.health.state) == ("0000:3b:00.0", "unhealthy")
    assert "write error" in intel.health.reason
    assert (xilinx.bus_id, xilinx.driver_version) == ("0000:5e:00.0", "xocl")
    assert isinstance(xilinx.health, NotAvailable)


def test_this_machines_processors_are_what_the_kernel_reports():
    inventory = CpuInventory()
    (cpu,) = inventory.look().devices
    assert cpu.architecture == platform.machine()
    assert cpu.attributes["cores"] == str(os.sysconf("SC_NPROCESSORS_ONLN"))
    assert cpu.memory_total_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < cpu.memory_used_bytes < cpu.memory_total_bytes
    stop = threading.Event()
    busy = threading.Thread(target=_spin, args=(stop,))
    busy.start()
    try:
        while True:  # one core at work is seen, whatever else the machine does
            (now,) = inventory.look().devices
            if isinstance(now.busy_permille, int) and now.busy_permille > 0:
                break
    finally:
        stop.set()
        busy.join()
    assert now.busy_permille <= 1000


def _spin(stop):
    while not stop.is_set():
        pass


def test_a_machine_that_has_none_says_why_for_each_kind(machine, monkeypatch):
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    for one in survey(root=machine.root):
        assert one.devices == (), one.kind
        assert one.unavailable.why, one.kind
    kinds = {one.kind: one.unavailable for one in survey(root=machine.root)}
    assert "no AMD GPU is on the PCI bus, and amd-smi is not installed" in kinds["amd"].why
    assert "--simulate" in kinds["simulated"].fix


def test_cards_are_listed_where_the_driver_is_missing(machine):
    machine.pci("0000:0a:00.0", 0x10DE, 0x2335, 0x030200)
    machine.pci("0000:0b:00.0", 0x1002, 0x75A0, 0x120000, "amdgpu")
    found = {one.kind: one for one in survey(["nvidia", "amd"], root=machine.root)}
    (gpu,) = found["nvidia"].devices
    assert gpu.bus_id == "0000:0a:00.0"
    assert "no NVIDIA driver" in gpu.busy_permille.why
    assert found["nvidia"].unavailable.fix == "install the NVIDIA driver"
    assert [one.bus_id for one in found["amd"].devices] == ["0000:0b:00.0"]
