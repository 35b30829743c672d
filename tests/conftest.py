"""Fixtures and hooks of all tests: skips are printed, and fail the run where CI forbids them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import hypothesis
import pytest
from tests.interposition.support import real_driver
from tests.support import headers, host_steal, xdist_schedule

# Tests that need torch run in an environment of their own, build/torch, and no others do.
NEED_TORCH = {"card", "estimate_torch", "training"}
HAS_TORCH = importlib.util.find_spec("torch") is not None
HERE = Path(__file__).parent
collect_ignore = [
    one.name
    for one in HERE.iterdir()
    if (one.name in NEED_TORCH) != HAS_TORCH and one.name != "conftest.py"
]

# Examples share two cores with programs that keep time: how long one takes says nothing.
hypothesis.settings.register_profile("penstock", deadline=None)
hypothesis.settings.load_profile("penstock")


@pytest.fixture(scope="session")
def cuda_include() -> Path:
    return headers.cuda_include()


@pytest.fixture(scope="session")
def real_libcuda() -> Path:
    """A real driver library; without one, tests that need it are skipped with the reason."""
    try:
        return real_driver.find(Path(__file__).parents[1] / "build" / "real-driver")
    except real_driver.NotToBeHadError as why:
        pytest.skip(f"no real driver library to compare with: {why}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(xdist_schedule)
    config.pluginmanager.register(host_steal)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the figures that tests recorded by `record_property`, and the skipped tests."""
    told: dict[str, list[str]] = {}
    stats = terminalreporter.stats
    for report in [*stats.get("passed", []), *stats.get("failed", [])]:
        for name, line in report.user_properties:
            told.setdefault(name, []).append(str(line))
    for name, lines in told.items():
        terminalreporter.section(name)
        for line in sorted(lines):
            terminalreporter.write_line(line)
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
