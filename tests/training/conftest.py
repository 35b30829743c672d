"""Runs are kept in a folder of the test's own, and commands run as a user runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(autouse=True)
def projects(tmp_path, monkeypatch):
    folder = tmp_path / "projects"
    monkeypatch.setenv("PENSTOCK_TRAIN_DIR", str(folder))
    for name in ("PENSTOCK_CARD", "PENSTOCK_CARD_AS", "PENSTOCK_CARD_RECOVERY"):
        monkeypatch.delenv(name, raising=False)
    return folder


def penstock(*arguments, timeout=120, **more):
    """A command to its end; what it wrote is text."""
    return subprocess.run(
        [sys.executable, "-m", "penstock", *map(str, arguments)],
        capture_output=True, text=True, timeout=timeout, check=False, env=dict(os.environ), **more,
    )  # fmt: skip


def python(text):
    """A command that runs a program's text."""
    return [sys.executable, "-c", text]
