"""`make gpu-check`: all checks on a real GPU, in one run with a time limit.

python -m tests.gpu [--seconds N] [--simulate PROFILE] [--sections A,B] [--only WORDS]…
                   [--out FOLDER] [--small]

Runs on the real device if there is one, else on a simulated H200, and marks every row accordingly.
The report is in FOLDER (bench/results) after every row. Remaining time is used for more cells of
the compute quota.

Exit codes. 0: the report is complete and no row is a fault; a figure that missed its aim is no
fault, and the report names it. 1: a row is `wrong`, `differs`, `failed` or `hung`. 2: nothing was
measured, or the report could not be written. 128 + a signal's number: the signal ended the run.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import sys
from functools import partial
from pathlib import Path

from tests.gpu import sections
from tests.gpu.arena import Arena
from tests.gpu.budget import MORE, SHARES, Budget
from tests.gpu.facts import REPOSITORY, Pythons, facts_of
from tests.gpu.keeper import Keeper
from tests.gpu.preflight import OnlyOne, look_at, real_device
from tests.gpu.report import Report, is_bad, tally
from tests.gpu.run import run_checks
from tests.gpu.sections import coverage
from tests.gpu.setting import Setting

from penstock.bench.scratch import scratch_folder
from penstock.model import PenstockError

DEFAULT_SECONDS, LONGEST_SECONDS = "540", 86400
SIMULATED = "h200"


def main(words: list[str] | None = None) -> int:
    """The exit code."""
    options = _parse(words)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] - cut short, it was said
    budget = Budget(options.seconds)
    try:
        with contextlib.ExitStack() as stack:
            simulate = options.simulate
            if not simulate and (why := real_device()):
                simulate = SIMULATED
                print(f"{why}: everything runs on a simulated {simulate}")
            if not simulate:
                stack.enter_context(OnlyOne())
            folder = stack.enter_context(scratch_folder("gpu-check"))
            stack.enter_context(Keeper(folder))
            arena = stack.enter_context(Arena(folder, simulate))
            return _check(arena, budget, options)
    except (PenstockError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before the first check
        return 128 + signal.SIGINT


def _check(arena: Arena, budget: Budget, options: argparse.Namespace) -> int:
    pythons = Pythons()
    probe = partial(Setting.own_script, "probes.py")
    device = look_at(lambda name: arena.native(probe(name)))
    facts = {**facts_of(arena, pythons, options.seconds), **device.facts(),
             "small": options.small}  # fmt: skip
    chosen = (c for c in sections.checks() if c.section in options.sections)
    checks = [c for c in chosen if not options.only or any(w in c.name for w in options.only)]
    if not checks and options.only:
        raise PenstockError(
            f"no row of {', '.join(options.sections)} is named so: {', '.join(options.only)}",
            "--only takes a part of a row's name, as the report has it",
        )
    kind = "simulated-" if arena.simulated else ""
    model = arena.device.name.removeprefix("NVIDIA ").lower().replace(" ", "-")
    stamp = str(facts["date"]).replace(":", "")[:17]
    base = options.out / f"gpu-{stamp}-{kind}{model}"
    planned = [(check.section, check.name) for check in checks]
    hidden = {str(arena.folder): "SCRATCH", sys.prefix: "VENV", str(REPOSITORY): "REPOSITORY"}
    report = Report(base, facts, planned, hidden=hidden)
    for name, value in facts.items():
        print(f"{name}: {value}")
    setting = Setting(arena, pythons, device, small=options.small)
    more = coverage.more_checks() if MORE in options.sections and not options.only else ()
    number = run_checks(checks, setting, report, budget, more)
    print(f"{report.state}: {tally(report.as_dict()['rows'])}")
    print(report.json_path)
    print(report.markdown_path)
    if report.problem:
        print(report.problem, file=sys.stderr)
        return 2
    if number:
        return 128 + number
    return int(any(is_bad(row) for row in report.rows))


def _seconds(text: str) -> float:
    """A length of time. Raises argparse's error."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= LONGEST_SECONDS:  # also NaN
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of seconds between 0 and {LONGEST_SECONDS:g} "
            "(--seconds, GPU_CHECK_SECONDS)"
        )
    return seconds


def _parse(words: list[str] | None) -> argparse.Namespace:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("gpu-check", description=__doc__, formatter_class=shape)
    seconds = os.environ.get("GPU_CHECK_SECONDS") or DEFAULT_SECONDS
    parser.add_argument("--seconds", type=_seconds, default=seconds)  # text: by `type` as well
    parser.add_argument("--simulate", default=os.environ.get("GPU_CHECK_SIMULATE"))
    parser.add_argument("--sections", type=lambda text: text.split(","), default=[*SHARES, MORE])
    parser.add_argument("--only", action="append", metavar="WORDS", help="rows named so")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "bench" / "results")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args(words)
    unknown = set(options.sections) - {*SHARES, MORE}
    if unknown:
        parser.error(
            f"no section {', '.join(sorted(unknown))}; there are {', '.join([*SHARES, MORE])}"
        )
    return options


if __name__ == "__main__":
    sys.exit(main())
