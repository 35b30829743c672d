"""CuPy: elementwise, reduction, matrix product, a raw kernel, a stream; integers, exactly."""

import time

import cupy
import numpy as np
from say import digest_of, say

SCALE = cupy.RawKernel(
    r"""extern "C" __global__ void scale(unsigned* x, unsigned by, size_t n) {
        size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
        if (i < n) x[i] = x[i] * by + 1;
    }""",
    "scale",
)


def main():
    began = time.monotonic()
    n = 1 << 22
    x = cupy.arange(n, dtype=cupy.uint32)
    for _ in range(20):
        SCALE((n // 256,), (256,), (x, np.uint32(3), np.uint64(n)))
    a = cupy.arange(1024 * 1024, dtype=cupy.float32).reshape(1024, 1024) % 17
    product = a @ a.T
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()  # a stream that does not block waits for none
    with stream:
        total = (x % 1000).sum()
    stream.synchronize()
    say(
        digest=digest_of(cupy.asnumpy(x), cupy.asnumpy(product), cupy.asnumpy(total)),
        value=float(total),
        seconds=time.monotonic() - began,
        cupy=cupy.__version__,
    )


main()
