"""A real tenant on a simulated device, for the tests that need a real usage page."""

from __future__ import annotations

import contextlib
import signal

import pytest
from tests.cli.conftest import Penstock, end_members


@pytest.fixture
def penstock(tmp_path):
    """The real command line, with a state directory of its own."""
    harness = Penstock(tmp_path / "state")
    yield harness
    for process in harness.started:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
    end_members(harness.state)
