"""`python -m tests.programs_at_random`: scripts by seed or from files, and what is wrong with them.

… 7 8 9               play the scripts of these seeds
… 0-1000              … of these, and shrink those that fail
… FILE                play a script
… --write 7           print a script
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.programs_at_random.support import build, keeping, playing, shrinking
from tests.programs_at_random.support.writing import features, writer


def seeds_of(word: str) -> list[int]:
    first, dash, last = word.partition("-")
    return list(range(int(first), int(last) + 1)) if dash else [int(first)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.programs_at_random")
    parser.add_argument("what", nargs="+", help="seeds, 100-199, or a script's file")
    parser.add_argument("--write", action="store_true", help="only print the scripts")
    parser.add_argument("--features", default="", help="+name or -name, separated by commas")
    parser.add_argument("--tight", action="store_true", help="only where memory is short")
    parser.add_argument("--cores", type=int, nargs="*", help="at these percentages")
    parser.add_argument("--at-once", type=int, default=2, help="scripts played beside each other")
    parser.add_argument("--shrink", action="store_true", help="print a failing script shrunk")
    parser.add_argument("--tries", type=int, default=1, help="how often each is played")
    parser.add_argument("--folder", type=Path, help="where failing scripts go")
    asked = parser.parse_args()
    allowed = features.chosen(asked.features)
    scripts: list[tuple[str, str]] = []
    for word in asked.what:
        if Path(word).exists():
            scripts.append((word, Path(word).read_text()))
        else:
            chosen = keeping.when_tight(allowed) if asked.tight else allowed
            scripts += [(str(s), writer.write(s, chosen)) for s in seeds_of(word)]
    if asked.write:
        print(*(text for _, text in scripts), sep="\n")
        return 0
    settings = tuple(playing.Setting(c) for c in asked.cores) if asked.cores else playing.SETTINGS
    if asked.tight:
        settings = (playing.TIGHT,)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(asked.at_once) as pool:
        player = build.player(Path(folder))

        def one(script: tuple[str, str]) -> bool:
            name, text = script
            began = time.monotonic()
            faults: list[str] = []
            for _ in range(asked.tries):
                faults = faults or playing.play(player, text, settings)
            if not faults:
                return True
            if asked.shrink:
                text, faults = shrinking.shrink(player, text, faults, settings, asked.tries)
                print(text, flush=True)
            if asked.folder:
                (asked.folder / Path(name).name).write_text(text)
            took = time.monotonic() - began
            print(f"== {name} ({took:.1f} s):", *faults, sep="\n  ", flush=True)
            return False

        wrong = list(pool.map(one, scripts)).count(False)
    print(f"{len(scripts)} scripts, {wrong} with faults")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
