"""Cases of the C programs in `tests/gate/programs`, and what their runs have in common."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

PROGRAMS = Path(__file__).parents[1] / "programs"
TIMEOUT_S = 20


def cases(name: str) -> list[str]:
    """The names of all cases in `programs/NAME.c`."""
    text = (PROGRAMS / f"{name}.c").read_text()
    return re.findall(r"^CASE\((\w+)\)", text, re.MULTILINE)


def output_of(child: subprocess.Popen[str]) -> str:
    """The output of a program, which must end with status 0 and in time."""
    output, errors = child.communicate(timeout=TIMEOUT_S)
    assert child.returncode == 0, output + errors
    return output


def until(condition: Callable[[], bool]) -> None:
    """Returns when the condition holds."""
    give_up = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.001)
