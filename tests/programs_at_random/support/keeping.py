"""Scripts that failed once, and what a test plays of a seed.

A kept script says in its first lines what was wrong (`# why …`) and how it is played
(`# play 50` percent, or `# play 90 tight`).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.programs_at_random.support import playing
from tests.programs_at_random.support.writing import features, writer

KEPT = Path(__file__).parents[1] / "kept"
FEATURES = os.environ.get("PENSTOCK_RANDOM_FEATURES", "")
MOST_RUNS = 5  # of a script that is expected to fail: some do not each time
TIGHT_EVERY = 4
# What is refused to one half of a meeting would keep the other.
NOT_TIGHT = frozenset({"meetings", "across devices", "across processes", "host waits"})
# What waits for a launch at the gate spins, and under a small quota that takes minutes to be paid.
MEETS = re.compile(r"^\d+\.\d+ (meet|waitv|hostwaits) ", re.MULTILINE)
MEETING_SETTINGS = (playing.Setting(50), playing.Setting(90))
# Nor yet: at the brink of a quota, processes that grow pools at once are left charged for too much.
NOT_TIGHT_YET = frozenset({"pools", "shared pools"})

# Kept scripts that still fail, and why: a line goes with the fault.
EXPECTED: dict[str, str] = {}
NOW_AND_THEN = frozenset(EXPECTED)  # of these: may also do well


def kept() -> list[str]:
    """The names of the kept scripts."""
    return sorted(path.stem for path in KEPT.glob("*.script"))


def is_tight(seed: int) -> bool:
    return seed % TIGHT_EVERY == TIGHT_EVERY - 1


def when_tight(features: frozenset[str]) -> frozenset[str]:
    """Those of the features that programs may use when memory is short."""
    return features - NOT_TIGHT - NOT_TIGHT_YET


def script_of(seed: int) -> str:
    """The script of this seed, as tests play it."""
    allowed = features.chosen(FEATURES)
    return writer.write(seed, when_tight(allowed) if is_tight(seed) else allowed)


def settings_of(seed: int) -> tuple[playing.Setting, ...]:
    if is_tight(seed):
        return (playing.TIGHT,)
    return MEETING_SETTINGS if MEETS.search(script_of(seed)) else playing.SETTINGS


def settings_in(script: str) -> tuple[playing.Setting, ...]:
    """The settings that the script's first lines name; without such lines, those of any script."""
    said = re.findall(r"^# play (\d+)( tight)?$", script, re.MULTILINE)
    return tuple(playing.Setting(int(c), bool(tight)) for c, tight in said) or playing.SETTINGS


def told(seed: int, script: str, faults: list[str]) -> str:
    """The message of a failed test."""
    settings = " --tight" if is_tight(seed) else ""
    features = f" --features={FEATURES}" if FEATURES else ""
    return "\n".join(
        [
            f"seed {seed}, shrunk:",
            script,
            *faults,
            f"again: python -m tests.programs_at_random {seed}{settings}{features}",
            f"to keep it: the script into {KEPT}/NAME.script",
        ]
    )
