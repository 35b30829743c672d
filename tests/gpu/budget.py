"""Which check runs when, and for how long: each section has its share of the time.

Sections come in the order of their worth, and what one leaves over goes to the next. A check for
which its section has no time left waits until all sections had theirs; what is left then is for
those that wait, and after them for more cells of the compute quota, as many as there is time for.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tests.gpu.rows import Outcome
    from tests.gpu.setting import Setting

SHARES = {  # of the whole time; in the order of worth
    "compatibility": 0.29,
    "memory": 0.10,
    "compute": 0.28,
    "cost": 0.12,
    "suspend": 0.07,
    "assumptions": 0.14,
}
MORE = "more cells"  # a section without a share: what is left goes to it
SPARE_S = 4.0  # of the whole, for the last row and the report


@dataclass(frozen=True)
class Check:
    """One row to be measured."""

    section: str
    name: str
    run: Callable[[Setting], Outcome]
    needs_s: float  # what it takes when all goes well; it is not begun with less
    timeout_s: float  # when it is taken for hung
    requires: Callable[[Setting], object] | None = None
    """Raises `NotHereError` at once where what the check needs is not here: that takes no time."""
    pairs: frozenset[tuple[str, str]] = frozenset()  # of conditions, that it has together


@dataclass(frozen=True)
class Slot:
    """A check whose time has come, and until when it may run (time.monotonic)."""

    check: Check
    deadline: float
    is_short: bool  # the deadline is the run's, not the check's own: running into it is no hang


class Budget:
    """The run's time."""

    def __init__(
        self, seconds: float, now: Callable[[], float] = time.monotonic, spare_s: float = SPARE_S
    ) -> None:
        self._now = now
        self._began = now()
        self.end = self._began + max(0.0, seconds - spare_s)

    def slots(self, checks: Sequence[Check], more: Iterable[Check] = ()) -> Iterator[Slot]:
        """The checks for which there is time, in the order in which they are to run.

        `more`: what the time that is left is for, without end if need be.
        """
        waiting: list[Check] = []
        used = 0.0
        there = [section for section in SHARES if any(c.section == section for c in checks)]
        whole = sum(SHARES[section] for section in there)
        for section in there:
            used += SHARES[section] / whole
            section_end = self._began + used * (self.end - self._began)
            for check in (check for check in checks if check.section == section):
                if self._now() + check.needs_s > section_end:
                    waiting.append(check)
                    continue
                yield self._slot(check, section_end)
        for check in waiting:
            if self._now() + check.needs_s <= self.end:
                yield self._slot(check, self.end)
        for check in more:
            if self._now() + check.needs_s > self.end:
                return
            yield self._slot(check, self.end)

    def _slot(self, check: Check, limit: float) -> Slot:
        # A check may overrun its section by what it needs, never the run.
        latest = min(self.end, max(limit, self._now() + 2 * check.needs_s))
        own = self._now() + check.timeout_s
        return Slot(check, min(own, latest), own > latest)
