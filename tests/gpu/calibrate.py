"""Puts what a real device's driver calls cost into the simulated GPU's profile.

python -m tests.gpu.calibrate REPORT.json shim/penstock_shim/profiles/h200.yaml [--write]

Takes the report's figures `profile.KEY` for the keys of the profile's group `estimates`, and says
in its `source:` which ones were measured, where and when. Without --write it only shows them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from tests.gpu.reading import read_report

from penstock.model import PenstockError
from penstock_shim.profiles import Profile, ProfileError, load_profile

PREFIX = "profile."
WHOLE = re.compile(r"_(ns|us|ms|ps|mib|kib)$|^queue_depth$")
KEYS = (  # of `estimates`, that the suite measures
    "context_mib", "host_link_gb_per_s", "slab_kib", "time_slice_us", "context_switch_us",
    "event_tick_ns", "queue_depth", "launch_ns", "event_record_ns", "query_ns", "stream_op_ns",
    "memory_call_ns", "memory_slab_ns", "kernel_floor_ns", "kernel_gap_ns", "sample_period_ms",
)  # fmt: skip


def measured_costs(report: dict[str, Any]) -> dict[str, float]:
    """Key of `estimates` → what was measured, in the profile's unit and as exact as it has them."""
    found: dict[str, float] = {}
    for row in report["rows"]:
        if row["status"] != "measured" or row["simulated"]:
            continue
        for name, value in row["figures"].items():
            key = name.removeprefix(PREFIX)
            if name.startswith(PREFIX) and key in KEYS:
                found[key] = max(1, round(value)) if WHOLE.search(key) else round(value, 1)
    return found


def calibrated(report: dict[str, Any], profile: Profile) -> str:
    """The profile's text with the report's figures.

    Raises:
        PenstockError: the report is of a simulated device, of another one, or holds no figure.
    """
    facts = report["facts"]
    if facts["simulated"]:
        raise PenstockError(
            "this report is of a simulated device",
            "its costs are the profile's own",
            "take one that make gpu-check wrote on a real device",
        )
    if not str(facts["device"]).startswith(profile.name):
        raise PenstockError(
            f"this report is of {facts['device']}",
            f"{profile.path.name} is the profile of {profile.name}",
        )
    costs = measured_costs(report)
    if not costs:
        raise PenstockError(
            "this report holds no cost", "its run was cut before they were measured"
        )
    lines = profile.path.read_text(encoding="utf-8").splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("estimates:"))
    end = next((i for i in range(begin + 1, len(lines)) if re.match(r"\S", lines[i])), len(lines))
    group = lines[begin + 1 : end]
    for key, value in costs.items():
        place = next((i for i, line in enumerate(group) if line.startswith(f"  {key}:")), None)
        if place is None:
            group.append(f"  {key}: {value:g}")
        else:
            comment = group[place].partition(" #")[2]
            group[place] = f"  {key}: {value}" + (f" #{comment}" if comment else "")
    group = [_source(facts, costs, line) for line in group]
    return "\n".join([*lines[: begin + 1], *group, *lines[end:]]) + "\n"


def _source(facts: dict[str, Any], costs: dict[str, float], line: str) -> str:
    """The group's `source:` line says what was measured; the rest of it stays."""
    if not line.startswith("  source:"):
        return line
    told = line.partition('"')[2].rpartition('"')[0]
    rest = told.partition("; the rest: ")[2] or told
    driver = facts.get("driver", "not told")
    where = f"{facts['device']}, driver {driver}, {str(facts['date'])[:10]}, {facts['commit']}"
    return f'  source: "measured ({where}): {", ".join(sorted(costs))}; the rest: {rest}"'


def main() -> int:
    """The exit code."""
    words = [word for word in sys.argv[1:] if word != "--write"]
    if len(words) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        report, profile = read_report(Path(words[0])), load_profile(Path(words[1]))
        text = calibrated(report, profile)
        aside = profile.path.with_suffix(".new.yaml")
        aside.write_text(text, encoding="utf-8")
        try:
            new = load_profile(aside)  # a figure that no profile may hold stops here
            for key, value in measured_costs(report).items():
                before = profile.figures.get(f"estimates.{key}")
                print(f"{key}: {before} -> {new.figures[f'estimates.{key}']} (measured {value})")
            if "--write" in sys.argv:
                aside.replace(profile.path)
        finally:
            aside.unlink(missing_ok=True)
    except (PenstockError, ProfileError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
