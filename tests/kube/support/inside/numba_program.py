"""A Numba program in a Pod: says as JSON what it may have, then computes until it is ended."""

import json

import numpy as np
from numba import cuda

MIB = 1 << 20
# Much device time for little processor time, or a busy machine decides what it gets.
ELEMENTS = 64 * MIB


@cuda.jit
def saxpy(a, x, y, out):
    start = cuda.grid(1)
    stride = cuda.gridsize(1)
    for i in range(start, out.size, stride):
        out[i] = a * x[i] + y[i]


def refusal(size_bytes):
    """Why it does not get so much; None: it does, and gives it back."""
    try:
        cuda.device_array(size_bytes, dtype=np.uint8)
    except cuda.cudadrv.driver.CudaAPIError as error:
        return str(error)
    return None


def main():
    _, total = cuda.current_context().get_memory_info()
    said = {"memory_bytes": total, "beyond": refusal(total + MIB), "within": refusal(total // 2)}
    x = cuda.to_device(np.ones(ELEMENTS, dtype=np.float32))
    y = cuda.device_array(ELEMENTS, dtype=np.float32)
    out = cuda.device_array(ELEMENTS, dtype=np.float32)
    print(json.dumps(said), flush=True)
    while True:
        for _ in range(64):
            saxpy[ELEMENTS // 256, 256](np.float32(2.0), x, y, out)
        cuda.synchronize()


main()
