"""Numba-CUDA: a compiled kernel over device arrays, streams, a copy back."""

import time

import numba
import numpy as np
from numba import cuda
from say import digest_of, say


@cuda.jit
def scale_add(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 3 * x[i] + y[i]


def main():
    began = time.monotonic()
    n = 1 << 20
    x = cuda.to_device(np.arange(n, dtype=np.uint32))
    y = cuda.to_device(np.ones(n, dtype=np.uint32))
    out = cuda.to_device(np.zeros(n, dtype=np.uint32))
    stream = cuda.stream()
    for _ in range(20):
        scale_add[n // 256, 256, stream](x, y, out)
        scale_add[n // 256, 256, stream](out, y, x)
    stream.synchronize()
    result = out.copy_to_host()
    say(digest=digest_of(result), value=float(result.sum()), seconds=time.monotonic() - began,
        numba=numba.__version__)  # fmt: skip


main()
