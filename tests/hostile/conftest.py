"""Fixtures: a real agent, and a hostile user with a shell on the node and subordinate ids."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agent.conftest import make_node  # noqa: F401 - a fixture
from tests.agent.support.programs import open_folder

NOBODY = 65534
FUSE = os.makedev(10, 229)  # Documentation/admin-guide/devices.txt


@pytest.fixture
def hostile():
    """Starts programs of `support/`, which become an ordinary user; they are ended first."""
    programs: list[subprocess.Popen[str]] = []

    def start(name: str, *arguments: object) -> subprocess.Popen[str]:
        path = str(Path(__file__).with_name("support") / name)
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


@pytest.fixture
def fuse(tmp_path):
    """A FUSE device that all may open, as on any machine, and a folder to mount in."""
    open_folder(tmp_path)
    device, folder = tmp_path / "fuse", tmp_path / "mounts"
    os.mknod(device, stat.S_IFCHR, FUSE)
    device.chmod(0o666)
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    return device, folder


@pytest.fixture
def holds(make_node, hostile, fuse):  # noqa: F811 - it ends before the nodes do
    """Starts lock_holder.py; returns it and its output when it holds its lock."""

    def start(way: str, *more: object) -> tuple[subprocess.Popen[str], str]:
        program = hostile("lock_holder.py", way, *fuse, *more)
        said = program.stdout.readline()
        if not said.endswith("ready\n"):
            pytest.skip("a user cannot mount a FUSE file system here")
        return program, said

    return start
