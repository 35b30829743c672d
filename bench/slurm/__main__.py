"""Slurm beside Penstock, in turns in one run: `python -m bench.slurm [--rounds 5] [--out FILE]`.

Needs root, and Debian's packages of Slurm, which it fetches. Prints a table; FILE gets JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from bench.slurm.cluster import Slurm
from bench.slurm.measure import Mix, Round, slurm_round
from bench.slurm.packages import fetch
from bench.slurm.penstock_side import PenstockPool, penstock_round

from penstock_shim import simulator

MIXES = {"beside the others": Mix(2, 1), "more than is free": Mix(5, 135)}


def _text(rounds: list[Round]) -> str:
    times = sorted(one.urgent_ms for one in rounds if one.urgent_ms is not None)
    if not times:
        return f"never: {rounds[0].failure.splitlines()[-1]}"
    spread = f"{times[0]:.0f} to {times[-1]:.0f}"
    return f"{statistics.median(times):.0f} ms ({spread})" + (
        f", {len(rounds) - len(times)} of {len(rounds)} failed" if len(times) < len(rounds) else ""
    )


def main() -> None:
    """Runs all rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("Slurm's daemons need root here")
    packages = fetch()
    found: dict[str, dict[str, list[Round]]] = {name: {} for name in MIXES}
    with tempfile.TemporaryDirectory(prefix="penstock-slurm-") as scratch:
        folder = Path(scratch)
        (folder / "slurm").mkdir()
        (folder / "penstock").mkdir()
        with (
            simulator.create_machine(folder / "machine", "h200") as machine,
            Slurm(packages, folder / "slurm") as slurm,
            PenstockPool(folder / "penstock") as pool,
        ):
            for number in range(options.rounds):
                for kind, mix in MIXES.items():
                    for way in ("sbatch", "srun", "penstock"):
                        own = folder / f"{number}-{way}-{kind.replace(' ', '-')}"
                        own.mkdir()
                        if way == "penstock":
                            one = penstock_round(pool, own, mix)
                        else:
                            one = slurm_round(slurm, own, machine, mix, way)
                        found[kind].setdefault(one.scheduler, []).append(one)
                        print(kind, one, file=sys.stderr, flush=True)
    print("| the urgent program needs | by | until its first kernel has run | device memory of the "
          "suspended |\n|---|---|---|---|")  # fmt: skip
    for kind, by in found.items():
        for scheduler, rounds in by.items():
            held = statistics.median(one.held_gib for one in rounds)
            print(f"| {kind} | {scheduler} | {_text(rounds)} | {held:.1f} GiB |")
    if options.out:
        result = {
            "slurm": packages.version,
            "device": "simulated NVIDIA H200",
            "load": os.getloadavg()[0],
            "mixes": {kind: asdict(mix) for kind, mix in MIXES.items()},
            "rounds": {k: {s: [asdict(r) for r in rs] for s, rs in by.items()}
                       for k, by in found.items()},
        }  # fmt: skip
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
