"""Shrinks a failing script: removes lines as long as the same kind of fault stays.

Lines of one group (# and a number) are removed together. Nothing else needs care, as the player
skips a line whose object was removed. A script that does not end without the shim is no result.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from tests.programs_at_random.support import build, playing

if TYPE_CHECKING:
    from pathlib import Path

OPERATION = re.compile(r'\{"(\w+)",\s*"([\w!]*)",')
ARGUMENTS = {
    name: arguments.replace("!", "")
    for source in build.SOURCES.glob("*.c")
    for name, arguments in OPERATION.findall(source.read_text())
}
HEAD = re.compile(r"process |channels |quiet|# ")
LONGEST_S = 180  # what is small enough by then is printed


def shrink(
    player: Path,
    script: str,
    faults: list[str],
    settings: tuple[playing.Setting, ...],
    tries: int = 1,
) -> tuple[str, list[str]]:
    """The smallest script found that shows one of these faults' kinds, and its faults."""
    failing = {str(s) for s in settings if any(f.startswith(f"{s}:") for f in faults)}
    settings = tuple(s for s in settings if str(s) in failing)[:1]  # none: it fails by itself
    on = str(settings[0] if settings else playing.NATIVE)
    wanted = set(playing.kinds([f for f in faults if f.startswith(f"{on}:")]))
    end = time.monotonic() + LONGEST_S
    units = split(script)
    size = max(1, len(units) // 2)
    while True:
        at, shorter = 0, False
        while at < len(units) and time.monotonic() < end:
            fewer = whole(script, units[:at] + units[at + size :])
            for _ in range(tries):  # some faults are not there each time
                found = playing.play(player, join(script, fewer), settings)
                same = [f for f in found if f.startswith(f"{on}:")]
                if wanted & set(playing.kinds(same)):
                    break
            if wanted & set(playing.kinds(same)):
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


def whole(script: str, units: list[list[int]]) -> list[list[int]]:
    """Drops units that lost an object they need: half of a meeting would wait for ever."""
    lines = script.splitlines()
    while True:
        made, needed = set(), {}
        for unit in units:
            for number in unit:
                process, name, *words = re.split(r"\.\d+ | ", lines[number].partition(" #")[0])
                for kind, word in zip(ARGUMENTS[name], words, strict=True):
                    if kind.isupper():
                        made.add((process, kind.lower(), word))
                    elif kind != "n":
                        needed.setdefault(id(unit), set()).add((process, kind, word))
        kept = [unit for unit in units if needed.get(id(unit), set()) <= made]
        if len(kept) == len(units):
            return kept
        units = kept


def join(script: str, units: list[list[int]]) -> str:
    kept = {number for unit in units for number in unit}
    lines = script.splitlines()
    return "\n".join([line for i, line in enumerate(lines) if i in kept or HEAD.match(line)] + [""])
