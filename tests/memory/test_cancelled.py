"""A thread that is cancelled inside of a call leaves no lock held, and nothing charged."""

from __future__ import annotations

import subprocess

import pytest


@pytest.mark.parametrize("call", ["release", "look"])
def test_others_go_on_when_a_thread_was_cancelled_in_a_call(program, tenant, call):
    done = subprocess.run(
        [program("cancelled"), call],
        env=tenant.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "empty\n"), done.stderr
