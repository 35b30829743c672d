"""Triton: a fused kernel compiled at run time, over PyTorch's memory."""

import time

import torch
import triton
import triton.language as tl
from say import digest_of, say


@triton.jit
def scale_add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, inside) * 2.0 + tl.load(y + at, inside), inside)


def main():
    began = time.monotonic()
    n = 1 << 22
    x = torch.arange(n, dtype=torch.float32, device="cuda") % 1000
    y, out = torch.ones_like(x), torch.empty_like(x)
    for _ in range(20):
        scale_add[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
        y.copy_(out % 1000)
    result = out.cpu().numpy()
    say(digest=digest_of(result), value=float(result.sum()), seconds=time.monotonic() - began,
        triton=triton.__version__)  # fmt: skip


main()
