"""Programs that make contexts, and check each charge."""

from __future__ import annotations

import ctypes

from tests.memory.support.cuda_calls import (
    MIB,
    OUT_OF_MEMORY,
    begin,
    charged,
    cu,
    expect,
    ok,
    old,
    old_ok,
    refused,
)
from tests.memory.support.linear_memory import SLAB


def primary_context(reserve: str) -> None:
    ok(cu.cuInit(0))
    with expect(int(reserve)):
        context = ok(cu.cuDevicePrimaryCtxRetain(0))
    ok(cu.cuCtxSetCurrent(context))
    with expect(0):
        ok(cu.cuDevicePrimaryCtxRetain(0))
        ok(cu.cuDevicePrimaryCtxRelease(0))
    ok(cu.cuMemAlloc(4 * MIB))  # dies with its context
    with expect(-int(reserve) - 4 * MIB):
        ok(cu.cuDevicePrimaryCtxRelease(0))


def reset_context(reserve: str) -> None:
    begin()
    ok(cu.cuMemAlloc(4 * MIB))
    with expect(-int(reserve) - 4 * MIB):
        ok(cu.cuDevicePrimaryCtxReset(0))


def _create_context(device: int = 0) -> object:
    context = ctypes.c_void_p()
    old_ok(old.cuCtxCreate_v2(ctypes.byref(context), 0, device))
    return context


def several_contexts(reserve: str) -> None:
    ok(cu.cuInit(0))
    with expect(2 * int(reserve)):
        first, second = _create_context(), _create_context()
    old_ok(old.cuCtxSetCurrent(first))
    pointer = ok(cu.cuMemAlloc(MIB))
    old_ok(old.cuCtxSetCurrent(second))
    with expect(-SLAB):
        ok(cu.cuMemFree(pointer))  # another context is current
    ok(cu.cuMemAlloc(2 * MIB))
    with expect(-2 * MIB - int(reserve)):
        old_ok(old.cuCtxDestroy_v2(second))
    with expect(-int(reserve)):
        old_ok(old.cuCtxDestroy_v2(first))


def no_room_for_a_context() -> None:
    ok(cu.cuInit(0))
    refused(cu.cuDevicePrimaryCtxRetain(0))
    context = ctypes.c_void_p()
    assert old.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == OUT_OF_MEMORY
    assert charged() == 0


def context_limits() -> None:
    begin()
    heap = cu.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE
    stack = cu.CUlimit.CU_LIMIT_STACK_SIZE
    standard = int(ok(cu.cuCtxGetLimit(heap)))
    with expect(10 * MIB):
        ok(cu.cuCtxSetLimit(heap, standard + 9 * MIB))
    with expect(0):
        ok(cu.cuCtxSetLimit(heap, standard + 10 * MIB))
    with expect(-10 * MIB):
        ok(cu.cuCtxSetLimit(heap, standard))
    attribute = cu.CUdevice_attribute
    sms = ok(cu.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0))
    threads = ok(
        cu.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 0)
    )
    standard = int(ok(cu.cuCtxGetLimit(stack)))
    with expect(1024 * sms * threads):
        ok(cu.cuCtxSetLimit(stack, standard + 1024))
    with expect(0):
        refused(cu.cuCtxSetLimit(stack, 256 << 10))
        refused(cu.cuCtxSetLimit(stack, 1 << 20), 1)  # more than any driver sets
