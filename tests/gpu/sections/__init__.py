"""The checks, one file for each section."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.gpu.sections import (
    assumptions,
    compatibility,
    compute,
    cost,
    doubts,
    memory,
    release,
    suspend,
)

if TYPE_CHECKING:
    from tests.gpu.budget import Check


def checks() -> list[Check]:
    """All of them; in a section the worthier ones come first."""
    parts = (compatibility, memory, compute, cost, suspend, release, assumptions, doubts)
    return [check for part in parts for check in part.checks()]
