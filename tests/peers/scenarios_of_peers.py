"""Asks four families for more than the quota once it is told to; prints the driver codes."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "memory"))

TOO_MUCH_BYTES = 1 << 30


def main() -> None:
    from cuda_calls import begin, cu, ok  # noqa: PLC0415  # opens the driver
    from physical import physical  # noqa: PLC0415  # the same

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


if __name__ == "__main__":
    main()
