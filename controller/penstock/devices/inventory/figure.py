"""Figure: a value, or `NotAvailable` with the reason why there is none and what to do about it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar, Union

_Told = TypeVar("_Told")


@dataclass(frozen=True)
class NotAvailable:
    """Why a value is not known, and what would help (empty if nothing would)."""

    why: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.why}; {self.fix}" if self.fix else self.why


Figure = Union[_Told, NotAvailable]  # noqa: UP007 - Python 3.10 makes no alias of a | of these


def known(figure: Figure[_Told]) -> _Told | None:
    """The figure's value; None if not available."""
    return None if isinstance(figure, NotAvailable) else figure


def number(text: object, scale: float = 1) -> Figure[int]:
    """A tool's output `text` times `scale` as an integer; `NotAvailable` if it is not a number."""
    try:
        value = float(str(text).strip()) * scale
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or abs(value) >= 2**63:
        return NotAvailable(f"the tool printed {str(text).strip()[:40]!r} for it")
    return round(value)
