"""One line of the doctor's report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Status = Literal["ok", "warning", "failure"]


@dataclass(frozen=True)
class Finding:
    """What was looked at, how it is, what was seen, and what to do about it."""

    check: str
    status: Status
    seen: str
    advice: str = ""  # empty when nothing need be done

    def as_dict(self) -> dict[str, str]:
        """Plain values, for JSON."""
        return asdict(self)


def ok(check: str, seen: str) -> Finding:
    """All is well."""
    return Finding(check, "ok", seen)


def warning(check: str, seen: str, advice: str) -> Finding:
    """It works, but not as somebody might think."""
    return Finding(check, "warning", seen, advice)


def failure(check: str, seen: str, advice: str) -> Finding:
    """Programs would not start, not be limited, or not be let near the device."""
    return Finding(check, "failure", seen, advice)
