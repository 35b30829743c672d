"""A driver-API program that runs commands, one a line.

alloc BYTES   |   run COUNT NANOSECONDS   (launches, waits)   |   queue COUNT NANOSECONDS
memory        (answers with free and total bytes)
"""

import ctypes
import sys

PTX = b""".version 7.0
.target sm_52
.address_size 64
.visible .entry spin(.param .u64 nanoseconds) { ret; }
"""

cuda = ctypes.CDLL("libcuda.so.1")


def check(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    if result:
        print(f"error {name} {result}", flush=True)
        sys.exit(1)


ordinal = int(sys.argv[1]) if len(sys.argv) > 1 else 0
device, context = ctypes.c_int(), ctypes.c_void_p()
module, function = ctypes.c_void_p(), ctypes.c_void_p()
check("cuInit", 0)
check("cuDeviceGet", ctypes.byref(device), ordinal)
check("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
check("cuCtxSetCurrent", context)
check("cuModuleLoadData", ctypes.byref(module), PTX)
check("cuModuleGetFunction", ctypes.byref(function), module, b"spin")
print("ready", flush=True)


def launch(count, nanoseconds):
    parameter = ctypes.c_uint64(nanoseconds)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(parameter))
    for _ in range(count):
        check("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, None, parameters, None)


for line in sys.stdin:
    command, *numbers = line.split()
    numbers = [int(number) for number in numbers]
    if command == "alloc":
        pointer = ctypes.c_uint64()
        check("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(numbers[0]))
    elif command == "memory":
        free_bytes, total_bytes = ctypes.c_size_t(), ctypes.c_size_t()
        check("cuMemGetInfo_v2", ctypes.byref(free_bytes), ctypes.byref(total_bytes))
        print(free_bytes.value, total_bytes.value, flush=True)
        continue
    else:
        launch(*numbers)
        if command == "run":
            check("cuCtxSynchronize")
    print("done", flush=True)
