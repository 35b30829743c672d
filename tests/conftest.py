"""What all tests share: skips are loud, and fail the run where nothing may be skipped."""

from __future__ import annotations

import os

import hypothesis
import pytest

# Examples share two cores with programs that keep time: how long one takes says nothing.
hypothesis.settings.register_profile("penstock", deadline=None)
hypothesis.settings.load_profile("penstock")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if not skipped:
        return
    terminalreporter.section(f"SKIPPED: {len(skipped)} tests did not run", sep="!")
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        terminalreporter.write_line(f"{report.nodeid}: {reason}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """With PENSTOCK_NO_SKIPS=1 (as CI sets it) a skip fails the run."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("PENSTOCK_NO_SKIPS") == "1" and reporter and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
