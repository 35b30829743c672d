"""`Costs`: what lines of the program cost beyond its operations, and warnings of slow ones.

What is counted is slow by itself: exchanges between cards, waits for all cards, new plans. So
counting it costs little, and other operations are not counted here at all.
"""

from __future__ import annotations

import threading
import time
import warnings
from typing import TYPE_CHECKING, NamedTuple

from penstock.card.device.source_line import source_line
from penstock.card.names import PenstockCardWarning
from penstock.model import human_memory

if TYPE_CHECKING:
    from penstock.card.device.source_line import SourceLine

GATHER, DOWNLOAD, DYNAMIC, PLANS = "gather", "download", "data-dependent", "new plans"
_MOST = 1024  # different costs; those that come later are counted together
_OTHERS = "others"
_FEW_PLANS = 20


class Threshold(NamedTuple):
    """What makes a line slow: to do something so often in a minute, and so much of it or so long.

    What is spread over a longer time costs the program little.
    """

    times: int
    size_bytes: int
    waited_ns: int


_SECOND = 10**9
_MINUTE_NS = 60 * _SECOND
_NEVER = 1 << 62
THRESHOLDS = {
    GATHER: Threshold(20, 256 << 20, _NEVER),
    DOWNLOAD: Threshold(100, 256 << 20, 3 * _SECOND),
    DYNAMIC: Threshold(20, 256 << 20, 3 * _SECOND),
    PLANS: Threshold(100, _NEVER, 3 * _SECOND),
}
ADVICE = {
    GATHER: "use operations that work on each row of the batch by itself, or do this less often",
    DOWNLOAD: "keep the values on the device, and read them once in many steps",
    DYNAMIC: "use torch.where or multiply by a mask in place of indexing by it, or do it on the "
    "CPU before the upload",
    PLANS: "use few different shapes, for example by padding to multiples of a size, and floats "
    "for numbers that change",
}


class Line:
    """What one line of the program has cost by things of one kind, in the last minute or less."""

    __slots__ = (
        "_began_ns", "_told", "count", "operations", "size_bytes", "source", "waited_ns", "what",
    )  # fmt: skip

    def __init__(
        self, what: str, source: SourceLine | None, told: set[tuple[str, SourceLine | None]]
    ) -> None:
        """`told`: the lines of which the program was warned."""
        self.what = what
        self.source = source
        self.count = self.size_bytes = self.waited_ns = 0
        self._began_ns = time.monotonic_ns()
        self.operations: dict[str, None] = {}
        self._told = told

    def add(self, size_bytes: int, waited_ns: int, reason: str) -> None:
        """Counts one more, and warns once if the line is slow.

        Raises:
            PenstockCardWarning: the program makes errors of such warnings.
        """
        now_ns = time.monotonic_ns()
        if now_ns - self._began_ns > _MINUTE_NS:
            self._began_ns = now_ns
            self.count = self.size_bytes = self.waited_ns = 0
        self.count += 1
        self.size_bytes += size_bytes
        self.waited_ns += waited_ns
        least = THRESHOLDS[self.what]
        if self.count < least.times or (self.what, self.source) in self._told:
            return
        if self.size_bytes >= least.size_bytes or self.waited_ns >= least.waited_ns:
            self._told.add((self.what, self.source))
            self._warn(reason)

    def _warn(self, reason: str) -> None:
        if self.source is None:
            return
        moved = f", {human_memory(self.size_bytes)}" if self.size_bytes else ""
        spent = "planned" if self.what == PLANS else "waited"
        waited = f", {spent} for {self.waited_ns / 1e9:.1f} s" if self.waited_ns else ""
        seconds = (time.monotonic_ns() - self._began_ns) / 1e9
        which = ", ".join(list(self.operations)[:3])
        warnings.warn_explicit(
            f"slow on device penstock: {which}{' in backward' if self.source.is_backward else ''}: "
            f"{reason} ({self.count} times in {seconds:.0f} s{moved}{waited}): "
            f"{ADVICE[self.what]}",
            PenstockCardWarning, self.source.file, self.source.number, registry={},
        )  # fmt: skip


class Cost:
    """One reason for which one operation is slow at one line."""

    __slots__ = ("count", "line", "operation", "reason", "size_bytes", "waited_ns")

    def __init__(self, line: Line, operation: str, reason: str) -> None:
        self.line = line
        self.operation = operation
        self.reason = reason
        self.count = self.size_bytes = self.waited_ns = 0

    @property
    def is_worth_telling(self) -> bool:
        """Whether it is to be shown: all operations are planned once, so few plans say nothing."""
        return self.count >= (_FEW_PLANS if self.line.what == PLANS else 1)

    def add(self, size_bytes: int, waited_ns: int = 0) -> None:
        """Counts one more. Raises as `Line.add`."""
        self.count += 1
        self.size_bytes += size_bytes
        self.waited_ns += waited_ns
        self.line.add(size_bytes, waited_ns, self.reason)


class GatherCost:
    """What each run of a plan gathers, and where that is counted."""

    __slots__ = ("_cost", "_size_bytes")

    def __init__(self, cost: Cost, size_bytes: int) -> None:
        self._cost = cost
        self._size_bytes = size_bytes

    def add(self) -> None:
        """The plan runs. Raises as `Line.add`."""
        self._cost.add(self._size_bytes)


class Costs:
    """All costs of a program. Any thread may add to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: set[tuple[str, SourceLine | None]] = set()
        self._lines: dict[tuple[str, str, SourceLine | None], Line] = {}
        self._costs: dict[tuple[str, str, str, SourceLine | None], Cost] = {}

    def cost(self, what: str, operation: str, reason: str) -> Cost:
        """The cost that the program's present line has by an operation, for a reason."""
        source = source_line()
        key = (what, operation, reason, source)
        with self._lock:
            cost = self._costs.get(key)
            if cost is None:
                if len(self._costs) >= _MOST:
                    operation, reason, source = _OTHERS, "", None
                    key = (what, operation, reason, source)
                # One line plans many operations once, all those of backward: each counts by itself.
                group = (what, operation if what == PLANS else "", source)
                line = self._lines.setdefault(group, Line(what, source, self._told))
                cost = self._costs.setdefault(key, Cost(line, operation, reason))
                line.operations[operation] = None
            return cost

    def downloaded(self, call: str, size_bytes: int, began_ns: int) -> None:
        """The program has waited for the content of a tensor. Raises as `Line.add`."""
        reason = "the program waits until all cards have done all before it"
        self.cost(DOWNLOAD, call, reason).add(size_bytes, time.monotonic_ns() - began_ns)

    def computed(self, operation: str, size_bytes: int, began_ns: int) -> None:
        """The program has waited for the shape of a result. Raises as `Line.add`."""
        reason = (
            "its result's shape depends on data, so all cards compute all, and the program waits"
        )
        self.cost(DYNAMIC, operation, reason).add(size_bytes, time.monotonic_ns() - began_ns)

    def planned(self, operation: str, began_ns: int) -> None:
        """A plan was made for arguments of new shapes. Raises as `Line.add`."""
        reason = "its arguments have other shapes or whole numbers again and again: each is planned"
        self.cost(PLANS, operation, reason).add(0, time.monotonic_ns() - began_ns)

    def all(self) -> list[Cost]:
        """All of them."""
        with self._lock:
            return list(self._costs.values())
