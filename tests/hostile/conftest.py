"""A real agent, and a user who means it harm: who has a shell on the node, and subordinate ids."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agent.conftest import make_node  # noqa: F401 - a fixture

NOBODY = 65534


@pytest.fixture
def hostile():
    """Starts programs of this folder, which become an ordinary user; they end first of all."""
    programs: list[subprocess.Popen[str]] = []

    def start(name: str, *arguments: object) -> subprocess.Popen[str]:
        path = str(Path(__file__).with_name(name))
        program = subprocess.Popen(
            [sys.executable, path, str(NOBODY), *map(str, arguments)],
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        programs.append(program)
        return program

    yield start
    for program in programs:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.communicate()
