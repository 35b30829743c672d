"""Which devices a program in a tenant sees: those granted, whatever CUDA_VISIBLE_DEVICES says."""

from __future__ import annotations

import dataclasses
import re
import sys

import pytest

MIB = 1 << 20
NO_DEVICE, INVALID_DEVICE = 100, 101
GRANTED = (2, 0)  # indices of the machine, in the grant's order
MEMORY = {2: 300 * MIB, 0: 200 * MIB}


@pytest.fixture
def tenant(tenants):
    """Two of three devices, each with its own quota."""
    tenant = tenants(granted=GRANTED)
    for place, index in enumerate(GRANTED):
        tenant.resize(MEMORY[index], place)
    return tenant


@pytest.fixture
def seen(build, inside, uuids):
    """Indices of the devices that a program sees, in its order, and its variable afterwards."""

    def look(tenant, value: str, **variables: str) -> tuple[list[int], str]:
        outcome = inside(tenant, build("devices"), value, **variables)
        code, *lines, after = outcome.output.splitlines()
        assert code == ("0" if lines else str(NO_DEVICE))
        plain = [uuid.replace("-", "")[3:] for uuid in uuids]
        devices = []
        for line in lines:
            uuid, memory_bytes, retained = line.split()
            devices.append(plain.index(uuid))
            assert int(memory_bytes) == MEMORY.get(devices[-1], 0)
            assert retained == "0"
        return devices, after

    return look


@pytest.mark.parametrize(
    ("value", "devices"),
    [
        ("-unset", [2, 0]),
        ("0", [2]),
        ("1", [0]),
        ("1,0", [0, 2]),
        (" 0 , 1 ", [2, 0]),
        ("2", []),
        ("", []),
        ("-1", []),
        ("0,-1,1", [2]),
        ("0,2,1", [2]),
        ("1,nonsense,0", [0]),
        ("0x1", []),
        ("0,0", []),
        ("{0}", [0]),
        ("{2},{0}", [2, 0]),
        ("{1}", []),
        ("{2},{1},{0}", [2]),
        ("{0},1", []),
        ("GPU-", []),
        ("{0}0", []),
        ("GPU-12345678", []),
    ],
)
def test_the_variable_chooses_among_granted_devices(tenant, seen, uuids, value, devices):
    value = value.format(*uuids)
    found, after = seen(tenant, value)
    assert found == devices
    assert after == ("unset" if value == "-unset" else value)


@pytest.mark.parametrize("length", [5, 8, 20, 39])
def test_the_beginning_of_a_uuid_is_enough_where_it_means_one_device(tenant, seen, uuids, length):
    start = uuids[0][:length]
    alone = not uuids[2].startswith(start)
    assert seen(tenant, start)[0] == ([0] if alone else [])
    assert seen(tenant, start.lower())[0] == ([0] if alone else [])


@pytest.mark.parametrize("order", ["FASTEST_FIRST", "PCI_BUS_ID"])
def test_devices_are_numbered_as_in_the_grant_in_every_device_order(tenant, seen, order):
    assert seen(tenant, "-unset", CUDA_DEVICE_ORDER=order)[0] == [2, 0]
    assert seen(tenant, "1", CUDA_DEVICE_ORDER=order)[0] == [0]


BUSES = """
import ctypes, sys
cuda, device, can = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(-1), ctypes.c_int(-1)
cuda.cuInit(0)
for bus in sys.argv[1:]:
    code = cuda.cuDeviceGetByPCIBusId(ctypes.byref(device), bus.encode())
    print(code, device.value if code == 0 else "-", end="; ")
print([cuda.cuDeviceCanAccessPeer(ctypes.byref(can), 0, other) for other in range(3)])
"""
BUS = """
import ctypes
cuda, text = ctypes.CDLL("libcuda.so.1"), ctypes.create_string_buffer(32)
cuda.cuInit(0)
for i in range(3): cuda.cuDeviceGetPCIBusId(text, 32, i); print(text.value.decode())
"""


def test_other_devices_are_found_neither_by_their_bus_nor_as_peers(tenant, inside, outside):
    everything = ",".join(map(str, range(3)))
    buses = outside(
        tenant, sys.executable, "-c", BUS, CUDA_VISIBLE_DEVICES=everything
    ).output.split()
    assert len(set(buses)) == 3
    printed = inside(tenant, sys.executable, "-c", BUSES, *buses).output
    assert printed == f"0 1; {INVALID_DEVICE} -; 0 0; [0, 0, {INVALID_DEVICE}]\n"


def test_a_variable_that_is_inherited_counts_like_one_that_the_program_sets(
    tenant, build, inside, uuids
):
    for value, count in (("1", 1), (uuids[1], 0), (",".join(uuids), 1)):
        lines = inside(tenant, build("devices"), CUDA_VISIBLE_DEVICES=value).output.splitlines()
        assert len(lines) - 2 == count
        assert lines[-1] == value


def test_a_granted_mig_instance_is_named_in_its_own_form(tenants, build, inside, uuids):
    """The simulated GPU has no MIG; the variable that the driver below sees keeps the name."""
    mig = "MIG" + uuids[0][3:]
    tenant = _tenant_of(tenants, "mig", mig)
    for value in ("-unset", "0", mig, mig[:9]):
        assert inside(tenant, build("devices"), value).output.startswith(f"{NO_DEVICE}\n")
        assert _last_seen(tenant) == mig
    inside(tenant, build("devices"), "GPU" + mig[3:])
    assert _last_seen(tenant) == ""


def _last_seen(tenant) -> str:
    """The devices that the driver below was to show, from the shim's log."""
    return re.findall(r"devices that this process sees: (.*)", tenant.log())[-1]


def _tenant_of(tenants, name: str, uuid: str):
    from penstock_shim.pages import QuotaWriter  # noqa: PLC0415 - for this test alone

    tenant = tenants(name)
    limits = tenant.quota.limits
    device = dataclasses.replace(limits.devices[0], uuid=uuid)
    driver = tenant.quota.read().driver_path
    tenant.quota.close()
    (tenant.folder / "quota").unlink()
    tenant.quota = QuotaWriter.create(
        tenant.folder / "quota",
        dataclasses.replace(limits, devices=(device,)),
        tenant=name,
        driver_path=driver,
    )
    assert tenant.quota.limits.devices[0].uuid == uuid
    return tenant


def test_each_device_has_its_own_quota_and_charges(tenant, build, inside):
    """Ordinal i is charged to grant i: what one allows the other refuses."""
    outcome = inside(tenant, build("fill"), "0", "1")
    assert outcome.code == 0
    assert outcome.output.split() == [str(MEMORY[2] // MIB), str(MEMORY[0] // MIB)]
    outcome = inside(tenant, build("fill"), "0", CUDA_VISIBLE_DEVICES="1")
    assert outcome.output.split() == [str(MEMORY[0] // MIB)]


def test_threads_that_initialise_at_once_leave_the_variable_as_it_was(tenant, build, inside):
    for value in ("1", "-unset"):
        outcome = inside(tenant, build("first_calls"), "64", value)
        after = "unset" if value == "-unset" else value
        assert outcome.output == f"64 threads: 0\n{after}\n"
