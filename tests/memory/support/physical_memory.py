"""Programs that take physical memory and map it: every order of mapping, releasing, sharing."""

from __future__ import annotations

import os

from tests.memory.support.cuda_calls import MIB, begin, cu, expect, ok, refused


def physical(device: int, size: int) -> tuple:
    properties = cu.CUmemAllocationProp()
    properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device
    properties.requestedHandleTypes = (
        cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    )
    return cu.cuMemCreate(size, properties, 0)


def vmm_released_then_unmapped() -> None:
    begin()
    size = 8 * MIB
    with expect(size):
        handle = ok(physical(0, size))
    address = ok(cu.cuMemAddressReserve(size, 0, 0, 0))
    with expect(0):
        ok(cu.cuMemMap(address, size, 0, handle, 0))
        ok(cu.cuMemRelease(handle))
    with expect(-size):
        ok(cu.cuMemUnmap(address, size))
    ok(cu.cuMemAddressFree(address, size))


def vmm_unmapped_then_released() -> None:
    begin()
    size = 8 * MIB
    handle = ok(physical(0, size))
    address = ok(cu.cuMemAddressReserve(size, 0, 0, 0))
    ok(cu.cuMemMap(address, size, 0, handle, 0))
    with expect(0):
        ok(cu.cuMemUnmap(address, size))
    with expect(-size):
        ok(cu.cuMemRelease(handle))


def vmm_mapped_twice() -> None:
    begin()
    size = 4 * MIB
    handle = ok(physical(0, size))
    address = ok(cu.cuMemAddressReserve(2 * size, 0, 0, 0))
    with expect(0):
        ok(cu.cuMemMap(address, size, 0, handle, 0))
        ok(cu.cuMemMap(int(address) + size, size, 0, handle, 0))
        ok(cu.cuMemRelease(handle))
        ok(cu.cuMemUnmap(address, size))
    with expect(-size):
        ok(cu.cuMemUnmap(int(address) + size, size))


def vmm_unmapped_in_one_go() -> None:
    """As PyTorch's expandable segments do: many pieces side by side, one call unmaps all."""
    begin()
    size, pieces = 2 * MIB, 100
    address = ok(cu.cuMemAddressReserve(size * pieces, 0, 0, 0))
    with expect(size * pieces):
        for i in range(pieces):
            handle = ok(physical(0, size))
            ok(cu.cuMemMap(int(address) + i * size, size, 0, handle, 0))
            ok(cu.cuMemRelease(handle))
    with expect(-size * pieces):
        ok(cu.cuMemUnmap(address, size * pieces))


def vmm_retained() -> None:
    begin()
    size = 4 * MIB
    handle = ok(physical(0, size))
    address = ok(cu.cuMemAddressReserve(size, 0, 0, 0))
    ok(cu.cuMemMap(address, size, 0, handle, 0))
    with expect(0):
        again = ok(cu.cuMemRetainAllocationHandle(int(address) + 4096))
        ok(cu.cuMemRelease(handle))
        ok(cu.cuMemUnmap(address, size))
    with expect(-size):
        ok(cu.cuMemRelease(again))


def vmm_imported_from_itself() -> None:
    begin()
    size = 4 * MIB
    kind = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    handle = ok(physical(0, size))
    with expect(0):
        descriptor = int(ok(cu.cuMemExportToShareableHandle(handle, kind, 0)))
        imported = ok(cu.cuMemImportFromShareableHandle(descriptor, kind))
        os.close(descriptor)
        ok(cu.cuMemRelease(handle))
    with expect(-size):
        ok(cu.cuMemRelease(imported))


def vmm_by_location() -> None:
    """Charged where the memory lies, whatever context is current; without one too."""
    ok(cu.cuInit(0))
    with expect(0, 0), expect(6 * MIB, 1):
        handle = ok(physical(1, 6 * MIB))
    with expect(-6 * MIB, 1):
        ok(cu.cuMemRelease(handle))


def vmm_on_a_device_not_granted() -> None:
    begin(0)
    with expect(0):
        refused(physical(1, 2 * MIB), 101)  # not there, as far as the driver is concerned
    refused(cu.cuDevicePrimaryCtxRetain(1), 101)
