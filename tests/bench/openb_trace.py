"""A made trace of 20 nodes in the files of the real one."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from penstock.bench.openb.trace import LISTS, NODES, PODS

if TYPE_CHECKING:
    from pathlib import Path

PARTS = (160, 230, 320, 470, 810)


def write_trace(folder: Path, *, pods: int = 120) -> Path:
    """The same files on every call."""
    chance = random.Random(7)  # noqa: S311 - sizes, no secrets
    lines = ["sn,cpu_milli,memory_mib,gpu,model"]
    for at in range(20):
        gpus, model = chance.choice([(8, "G2"), (2, "T4"), (4, "V100")])
        lines.append(f"node-{at:04},{gpus * 12000},{gpus * 48000},{gpus},{model}")
    (folder / NODES).write_text("\n".join(lines) + "\n")
    for name in LISTS:
        lines = ["name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec"]
        for at in range(pods):
            cpu = chance.choice([3000, 8000, 12000, 18000])
            gpus, milli = chance.choice(
                [(0, 0), (1, 1000), (1, 1000), (2, 1000), (8, 1000), *((1, part) for part in PARTS)]
            )
            accepted = "G2|T4" if name == "gpuspec10" and gpus == 1 and at % 10 == 0 else ""
            lines.append(f"pod-{at:04},{cpu},{cpu // 2},{gpus},{milli},{accepted}")
        (folder / PODS.format(name)).write_text("\n".join(lines) + "\n")
    return folder
