"""Names of the cases in the C programs beside this file, and what their runs have in common."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

PROGRAMS = Path(__file__).parent / "programs"
TIMEOUT_S = 20


def cases(name: str) -> list[str]:
    """All that `programs/NAME.c` registers."""
    text = (PROGRAMS / f"{name}.c").read_text()
    return re.findall(r"^CASE\((\w+)\)", text, re.MULTILINE)


def output_of(child: subprocess.Popen[str]) -> str:
    """What a program printed; it must end well, and in time."""
    output, errors = child.communicate(timeout=TIMEOUT_S)
    assert child.returncode == 0, output + errors
    return output


def until(condition: Callable[[], bool]) -> None:
    """Returns when it holds."""
    give_up = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.001)
