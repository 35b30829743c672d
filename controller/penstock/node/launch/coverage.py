"""Coverage report: the driver functions that a tenant's programs requested, and their handling."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock_shim import paths
from penstock_shim.pages import read_asked

if TYPE_CHECKING:
    from pathlib import Path

    from penstock_shim.pages import AskedName

NOT_SEEN = (
    "names that a program links or looks up with dlsym but never calls",
    "functions in private tables (cuGetExportTable), whose allocations are charged when first seen",
    "NVML: docs/coverage.md lists which functions show the tenant's view and which are forwarded",
    "programs that cannot be preloaded: static, musl, setuid (see penstock doctor -- COMMAND)",
)
_WHY = {
    "refused": "unknown to this release, and not found because it may take memory or device time",
    "unknown": "unknown to this release, but harmless by its name or allowed by the policy",
    "absent": "the driver does not have it, or not in the requested version",
    "forwarded": "one jump to the driver",
}
_FIRST = ("refused", "unknown", "absent", "forwarded")


@dataclass(frozen=True)
class AskedFor:
    """One driver function: how the shim handled it, how often, and why."""

    name: str
    kind: str
    requests: int
    calls: int
    why: str


@dataclass(frozen=True)
class Report:
    """All requested functions that the shim did not handle itself, worst first."""

    names: tuple[AskedFor, ...]
    overflow: int  # requests and calls whose names did not fit into the table
    unfinished: bool  # the command left processes behind, which may request more functions
    shim_used: bool = True  # a process used a device through the shim

    @property
    def refused(self) -> int:
        """The number of refused functions."""
        return sum(one.kind == "refused" for one in self.names)

    def as_dict(self) -> dict[str, object]:
        """The report as plain values, for JSON and YAML."""
        return {
            "names": [vars(one) for one in self.names],
            "refused": self.refused,
            "overflow": self.overflow,
            "unfinished": self.unfinished,
            "shim_used": self.shim_used,
            "not_seen": list(NOT_SEEN),
        }


def report(usage_page: Path, *, unfinished: bool) -> Report:
    """The coverage report from a tenant's usage page. Raises `PageError` if it is unreadable."""
    asked = read_asked(usage_page)
    table = json.loads(paths.coverage_table().read_text())["cuda"]
    names = [_with_reason(one, table) for one in asked.names]
    names.sort(key=lambda one: (_FIRST.index(one.kind), one.name))
    return Report(tuple(names), asked.overflow, unfinished, asked.ever_used or bool(names))


def _with_reason(one: AskedName, table: dict[str, list[str]]) -> AskedFor:
    kind, why = table.get(one.name, ("", ""))
    if kind != one.kind:
        why = _WHY[one.kind]
    return AskedFor(one.name, one.kind, one.requests, one.calls, why)
