"""A finding: one line of the doctor's report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Status = Literal["ok", "warning", "failure"]


@dataclass(frozen=True)
class Finding:
    """The result of one check: its name and status, what was seen, and what to do about it."""

    check: str
    status: Status
    seen: str
    advice: str = ""  # empty if there is nothing to do

    def as_dict(self) -> dict[str, str]:
        """The finding as plain values, for JSON."""
        return asdict(self)


def ok(check: str, seen: str) -> Finding:
    """A check that passed."""
    return Finding(check, "ok", seen)


def warning(check: str, seen: str, advice: str) -> Finding:
    """A check that passed, but not as the user might expect."""
    return Finding(check, "warning", seen, advice)


def failure(check: str, seen: str, advice: str) -> Finding:
    """A failed check: programs would fail to start, be unlimited, or not reach the device."""
    return Finding(check, "failure", seen, advice)
