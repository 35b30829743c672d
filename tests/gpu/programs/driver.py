"""The driver API by ctypes: probes need nothing but Python and a driver."""

import ctypes
import sys

from kernels import KERNELS

lib = ctypes.CDLL("libcuda.so.1")
SUCCESS, NOT_READY, OUT_OF_MEMORY = 0, 600, 2
U64 = ctypes.c_uint64


class DriverError(Exception):
    """A call that failed; `code` is the driver's."""

    def __init__(self, what, code):
        super().__init__(f"{what}: CUDA error {code}")
        self.code = code


def has(name):
    """Whether the driver exports `name`."""
    return hasattr(lib, name)


def code(name, *arguments):
    """The result of a call."""
    return getattr(lib, name)(*arguments)


def call(name, *arguments):
    """A call that must succeed."""
    result = code(name, *arguments)
    if result != SUCCESS:
        raise DriverError(name, result)


def attribute(number):
    value = ctypes.c_int()
    call("cuDeviceGetAttribute", ctypes.byref(value), number, 0)
    return value.value


def enter():
    """Initialises the driver and makes device 0's primary context current."""
    call("cuInit", 0)
    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    return context


def load(image=KERNELS):
    module = ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), image)
    return module


def function(module, name):
    found = ctypes.c_void_p()
    call("cuModuleGetFunction", ctypes.byref(found), module, name.encode())
    return found


def new_stream():
    stream = ctypes.c_void_p()
    call("cuStreamCreate", ctypes.byref(stream), 1)
    return stream


def new_event(flags=0):
    event = ctypes.c_void_p()
    call("cuEventCreate", ctypes.byref(event), flags)
    return event


def alloc(count):
    """Address of `count` bytes. Raises DriverError, with code 2 when none are left."""
    address = U64()
    call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(count))
    return address


def free(address):
    call("cuMemFree_v2", address)


def info():
    """Free and total bytes, as the program sees them."""
    available, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", ctypes.byref(available), ctypes.byref(total))
    return available.value, total.value


def launch(kernel, stream=None, *values):
    """One block of 32 threads; `values` are 8-byte parameters."""
    holders = [U64(value) for value in values]
    parameters = (ctypes.c_void_p * max(1, len(holders)))(
        *[ctypes.addressof(holder) for holder in holders]
    )
    call("cuLaunchKernel", kernel, 1, 1, 1, 32, 1, 1, 0, stream, parameters, None)


def sync(stream=None):
    call("cuStreamSynchronize", stream)


def leave(message):
    """Ends the program: what it is about is not on this machine."""
    sys.exit(f"not here: {message}")
