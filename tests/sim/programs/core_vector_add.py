"""A cuda.core program along the lines of its documentation: compile, launch, time."""

from __future__ import annotations

import ctypes

import numpy as np
from cuda.core import Device, EventOptions, LaunchConfig, Program, ProgramOptions, launch

SOURCE = """
template <typename T>
__global__ void add(const T *a, const T *b, T *sum, size_t n) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    sum[i] = a[i] + b[i];
}
"""
COUNT = 50_000

device = Device()
device.set_current()
stream = device.create_stream()
program = Program(
    SOURCE, code_type="c++", options=ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
)
kernel = program.compile("cubin", name_expressions=("add<float>",)).get_kernel("add<float>")
buffers = [device.allocate(COUNT * 4, stream=stream) for _ in range(3)]
config = LaunchConfig(grid=(COUNT + 255) // 256, block=256)
begun = device.create_event(EventOptions(timing_enabled=True))
ended = device.create_event(EventOptions(timing_enabled=True))
stream.record(begun)
for _ in range(10):
    launch(stream, config, kernel, *buffers, np.uint64(COUNT))
stream.record(ended)
stream.sync()
print(f"{ended - begun:.4f} ms")
other = device.allocate(COUNT * 4, stream=stream)
other.copy_from(buffers[0], stream=stream)
stream.sync()
for buffer in [*buffers, other]:
    buffer.close(stream)
stream.close()
print("driver", ctypes.CDLL("libcuda.so.1")._name)
