"""A Numba-CUDA program after its documentation: SAXPY in a loop, for some seconds.

python examples/numba_tenant.py [SECONDS]
"""

import sys
import time

import numpy as np
from numba import cuda

SAY_EVERY_S = 5.0


@cuda.jit
def saxpy(a, x, y, out):
    start = cuda.grid(1)
    stride = cuda.gridsize(1)
    for i in range(start, out.size, stride):
        out[i] = a * x[i] + y[i]


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    n = 64 * 1024 * 1024  # three arrays of 256 MiB
    x = cuda.to_device(np.ones(n, dtype=np.float32))
    y = cuda.device_array(n, dtype=np.float32)
    out = cuda.device_array(n, dtype=np.float32)
    threads = 256
    blocks = n // threads
    print(f"numba: SAXPY on 3 x {n * 4 >> 20} MiB for {seconds:.0f} s", flush=True)
    now = time.monotonic()
    end, say_at = now + seconds, now + SAY_EVERY_S
    launches = 0
    while now < end:
        for _ in range(16):
            saxpy[blocks, threads](np.float32(2.0), x, y, out)
        launches += 16
        now = time.monotonic()
        if now >= say_at:
            print(f"numba: {launches} launches, {max(0.0, end - now):.0f} s to go", flush=True)
            say_at += SAY_EVERY_S
    cuda.synchronize()
    print(f"numba: {launches} launches in {seconds:.0f} s")


if __name__ == "__main__":
    main()
