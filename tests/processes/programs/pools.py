"""Python's own ways of starting processes, with a driver in them: pools.py METHOD before|after.

Prints what the calls of the parent and of each worker answer.
"""

import ctypes
import multiprocessing
import sys


def use(number):
    cuda = ctypes.CDLL("libcuda.so.1")
    context, pointer, count = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int(-1)
    codes = [
        cuda.cuInit(0),
        cuda.cuDeviceGetCount(ctypes.byref(count)),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        cuda.cuCtxSetCurrent(context),
        cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20)),
        cuda.cuMemFree_v2(pointer),
    ]
    return number, codes, count.value


if __name__ == "__main__":
    method, when = sys.argv[1:]
    if when == "after":
        print(use(-1))
    with multiprocessing.get_context(method).Pool(3) as pool:
        print(pool.map(use, range(6)))
    print(use(-2))
