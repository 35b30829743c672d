"""`make gpu-check`: all that is to be shown on a real GPU, in one run with a time limit.

python -m tests.gpu [--seconds N] [--simulate PROFILE] [--sections A,B] [--only WORDS]…
                   [--out FOLDER] [--small]

Runs on the real device if a driver answers, else on a simulated H200, and marks every row so. The
report is in FOLDER (bench/results) after every row; 0: no row tells of a fault, 1: one does.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

from tests.gpu import sections
from tests.gpu.arena import REPOSITORY, Arena, has_real_device
from tests.gpu.budget import SHARES, Budget
from tests.gpu.facts import Pythons, facts_of
from tests.gpu.report import Report, is_bad, tally
from tests.gpu.run import run_checks
from tests.gpu.setting import Setting

from penstock.bench.scratch import scratch_folder
from penstock.model import PenstockError

DEFAULT_SECONDS = 540.0
SIMULATED = "h200"


def main(words: list[str] | None = None) -> int:
    """The exit code."""
    options = _parse(words)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] - cut short, it was said
    budget = Budget(options.seconds)
    simulate = options.simulate or (None if has_real_device() else SIMULATED)
    if simulate and not options.simulate:
        print(f"no driver answers here: everything runs on a simulated {simulate}")
    try:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(scratch_folder("gpu-check"))
            arena = stack.enter_context(Arena(folder, simulate))
            return _check(arena, budget, options)
    except PenstockError as error:
        print(error, file=sys.stderr)
        return 2


def _check(arena: Arena, budget: Budget, options: argparse.Namespace) -> int:
    pythons = Pythons()
    facts = {**facts_of(arena, pythons, options.seconds), "small": options.small}
    chosen = (c for c in sections.checks() if c.section in options.sections)
    checks = [c for c in chosen if not options.only or any(w in c.name for w in options.only)]
    kind = "simulated-" if arena.simulated else ""
    device = arena.device.name.removeprefix("NVIDIA ").lower().replace(" ", "-")
    stamp = str(facts["date"]).replace(":", "")[:17]
    base = options.out / f"gpu-{stamp}-{kind}{device}"
    planned = [(check.section, check.name) for check in checks]
    hidden = {str(arena.folder): "SCRATCH", sys.prefix: "VENV", str(REPOSITORY): "REPOSITORY"}
    report = Report(base, facts, planned, hidden=hidden)
    for name, value in facts.items():
        print(f"{name}: {value}")
    run_checks(checks, Setting(arena, pythons, small=options.small), report, budget)
    print(f"{report.state}: {tally(report.as_dict()['rows'])}")
    print(report.json_path)
    print(report.markdown_path)
    return int(any(is_bad(row) for row in report.rows))


def _parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__)
    seconds = os.environ.get("GPU_CHECK_SECONDS") or DEFAULT_SECONDS
    parser.add_argument("--seconds", type=float, default=float(seconds))
    parser.add_argument("--simulate", default=os.environ.get("GPU_CHECK_SIMULATE"))
    parser.add_argument("--sections", type=lambda text: text.split(","), default=list(SHARES))
    parser.add_argument("--only", action="append", metavar="WORDS", help="rows named so")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "bench" / "results")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args(words)
    unknown = set(options.sections) - set(SHARES)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SHARES)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
