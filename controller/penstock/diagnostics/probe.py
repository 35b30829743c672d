"""Runner of `penstock-probe`, a small program that reports what a CUDA program would see."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock_shim import paths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LONGEST_S = 20.0
_OF_A_TENANT = ("PENSTOCK_", "LD_PRELOAD", "LD_AUDIT")


@dataclass(frozen=True)
class Said:
    """A probe's output: its facts by (library, fact), its log, and why it ended early if it did."""

    facts: Mapping[tuple[str, str], str]
    log: str
    ended: str  # why the probe ended early; "" if it ended normally

    def number(self, library: str, fact: str) -> int | None:
        """A fact as a number; None if the probe did not report it."""
        word = self.facts.get((library, fact), "")
        return int(word) if re.fullmatch(r"-?\d+", word) else None


def run_probe(
    arguments: Sequence[str], environment: Mapping[str, str], *, linked: bool = False
) -> Said:
    """Runs the probe in this environment without tenant and preloads, plus `environment`."""
    program = paths.workload_path("penstock-probe-linked" if linked else "penstock-probe")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(_OF_A_TENANT)}
    try:
        done = subprocess.run(
            [str(program), *arguments],
            env={**clean, **environment},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
        return Said(
            _facts(said.decode(errors="replace")), "", f"it did not answer within {LONGEST_S:g} s"
        )
    except OSError as error:
        return Said({}, "", f"{program}: {error.strerror}")
    ended = ""
    if done.returncode:
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit {done.returncode}"
        ended = " ".join(f"{done.stderr.strip()[-300:]} ({how})".split())
    return Said(_facts(done.stdout), done.stderr, ended)


def _facts(text: str) -> dict[tuple[str, str], str]:
    lines = (line.split("\t") for line in text.splitlines())
    return {(words[0], words[1]): words[2] for words in lines if len(words) == 3}
