"""cuda.core: C++ compiled by NVRTC, launched on a stream, memory of its own pool."""

import ctypes
import time

import numpy as np
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
from say import digest_of, say

CODE = r"""
extern "C" __global__ void scale(unsigned* data, unsigned by, size_t n) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) data[i] = data[i] * by + 1;
}
"""


def main():
    began = time.monotonic()
    device = Device()
    device.set_current()
    stream = device.create_stream()
    options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
    kernel = Program(CODE, code_type="c++", options=options).compile("cubin").get_kernel("scale")
    n = 1 << 20
    data = device.memory_resource.allocate(n * 4, stream=stream)
    stream.sync()
    address = int(data.handle)
    (error,) = driver.cuMemsetD32Async(address, 7, n, int(stream.handle))  # it waits for no other
    assert not int(error), error
    for _ in range(20):
        launch(stream, LaunchConfig(grid=n // 256, block=256), kernel, data,
               ctypes.c_uint32(3), ctypes.c_size_t(n))  # fmt: skip
    stream.sync()
    result = np.empty(n, dtype=np.uint32)
    (error,) = driver.cuMemcpyDtoH(result.ctypes.data, address, n * 4)
    assert not int(error), error
    data.close(stream)
    say(digest=digest_of(result), value=float(result.sum()), seconds=time.monotonic() - began)


main()
