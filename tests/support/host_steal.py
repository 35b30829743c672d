"""A pytest plugin that runs a failed timed test again if the machine's host stole processor time.

The host of a virtual machine may give its processors to others: that is `steal` in /proc/stat. A
share, a latency or a grace that was measured meanwhile says nothing about Penstock. A `timed` test
that fails then runs again, twice at most; the last run counts, and the report names each run with
the share of stolen time. Without stolen time the first failure counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from _pytest.runner import runtestprotocol

MOST_RUNS = 3
LEAST_STOLEN = 0.05  # of the processor time that all of the machine wanted
TOLD_AS = "measured again: the host held this machine up"


class Ticks(NamedTuple):
    """Ticks of all processors since the machine was started."""

    stolen: int
    wanted: int  # used or stolen


def ticks() -> Ticks:
    """Reads /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal (man 5 proc)."""
    user, nice, system, _, _, irq, softirq, stolen = map(
        int, Path("/proc/stat").read_text().split()[1:9]
    )
    return Ticks(stolen, user + nice + system + irq + softirq + stolen)


def share_stolen(before: Ticks, after: Ticks) -> float:
    return (after.stolen - before.stolen) / max(1, after.wanted - before.wanted)


BEGAN = pytest.StashKey[Ticks]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[BEGAN] = ticks()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    stolen = share_stolen(config.stash[BEGAN], ticks())
    terminalreporter.write_line(f"this machine's host took {stolen:.1%} of its processors' time")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """As pytest's own, except that a timed test may be run again before its result is reported."""
    if item.get_closest_marker("timed") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for run in range(1, MOST_RUNS + 1):
        before = ticks()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        stolen = share_stolen(before, ticks())
        if run == MOST_RUNS or stolen < LEAST_STOLEN or not any(one.failed for one in reports):
            break
        item.user_properties.append(
            (TOLD_AS, f"{item.nodeid}: {stolen:.0%} of the processors' time, run {run}")
        )
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
