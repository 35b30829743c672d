"""Figures: what the program of a run has published of its cards."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from penstock.card.published import read_all

if TYPE_CHECKING:
    from penstock.card.published import ProgramFigures


def programs_of(pid: int) -> list[ProgramFigures]:
    """The programs with a virtual card in the session that a run's program leads; 0: none."""
    if not pid:
        return []
    found = []
    for one in read_all()[0]:
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(one.pid) == pid:
                found.append(one)
    return found
