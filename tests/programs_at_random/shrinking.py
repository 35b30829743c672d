"""A failing script made small: lines are taken away while the same kind of fault stays.

Lines of one group (# and a number) go together; nothing else needs care, as the player skips what
has lost its thing. What cannot end without the shim is no smaller form of the fault.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from tests.programs_at_random import playing

if TYPE_CHECKING:
    from pathlib import Path

HEAD = re.compile(r"process |channels |quiet|# ")
LONGEST_S = 300


def shrink(
    player: Path, script: str, faults: list[str], settings: tuple[playing.Setting, ...]
) -> tuple[str, list[str]]:
    """The smallest script found that shows one of these faults' kinds, and its faults."""
    if any(fault.startswith(str(playing.NATIVE)) for fault in faults):
        return script, faults
    failing = {str(s) for s in settings if any(f.startswith(f"{s}:") for f in faults)}
    settings = tuple(s for s in settings if str(s) in failing)[:1]
    wanted = set(playing.kinds([f for f in faults if f.startswith(f"{settings[0]}:")]))
    end = time.monotonic() + LONGEST_S
    units = split(script)
    size = max(1, len(units) // 2)
    while True:
        at, shorter = 0, False
        while at < len(units) and time.monotonic() < end:
            fewer = units[:at] + units[at + size :]
            found = playing.play(player, join(script, fewer), settings)
            if wanted & set(playing.kinds(found)):
                units, faults, shorter = fewer, found, True
            else:
                at += size
        if time.monotonic() > end or (size == 1 and not shorter):
            return join(script, units), faults
        size = max(1, size // 2)


def split(script: str) -> list[list[int]]:
    """Lines, by number, that can be taken away together."""
    units: dict[str, list[int]] = {}
    for number, line in enumerate(script.splitlines()):
        if HEAD.match(line) or not line:
            continue
        group = re.search(r"#\d+$", line)
        units.setdefault(group[0] if group else f"line {number}", []).append(number)
    return list(units.values())


def join(script: str, units: list[list[int]]) -> str:
    kept = {number for unit in units for number in unit}
    lines = script.splitlines()
    return "\n".join([line for i, line in enumerate(lines) if i in kept or HEAD.match(line)] + [""])
