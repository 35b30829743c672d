"""A cuda.core program after its documentation: C++ compiled at run time, launched in a loop.

python examples/cuda_core_tenant.py [SECONDS]
"""

import sys
import time

from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

CODE = r"""
template<typename T>
__global__ void scale(T* data, T factor, size_t n) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) data[i] *= factor;
}
"""


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    device = Device()
    device.set_current()
    stream = device.create_stream()

    options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
    program = Program(CODE, code_type="c++", options=options)
    module = program.compile("cubin", name_expressions=("scale<float>",))
    kernel = module.get_kernel("scale<float>")

    n = 128 * 1024 * 1024
    data = device.memory_resource.allocate(n * 4, stream=stream)
    block = 256
    config = LaunchConfig(grid=(n + block - 1) // block, block=block)

    end = time.monotonic() + seconds
    launches = 0
    while time.monotonic() < end:
        for _ in range(16):
            launch(stream, config, kernel, data, 1.0001, n)
        launches += 16
    stream.sync()
    data.close(stream)
    stream.close()
    print(f"cuda.core: {launches} launches in {seconds:.0f} s")


if __name__ == "__main__":
    main()
