"""A program that asks four families for more than the quota when a line arrives on its input.

It prints the driver's codes.
"""

from __future__ import annotations

from tests.memory.support.cuda_calls import begin, cu, ok
from tests.memory.support.physical_memory import physical

TOO_MUCH_BYTES = 1 << 30


def ask_for_too_much() -> None:
    begin()
    stream = ok(cu.cuStreamCreate(1))
    print("ready", flush=True)
    input()
    attach = int(cu.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL)
    answers = [
        cu.cuMemAlloc(TOO_MUCH_BYTES),
        cu.cuMemAllocAsync(TOO_MUCH_BYTES, stream),
        physical(0, TOO_MUCH_BYTES),
        cu.cuMemAllocManaged(TOO_MUCH_BYTES, attach),
    ]
    print(*(int(answer[0]) for answer in answers), flush=True)
