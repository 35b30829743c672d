"""Fixtures: the real command line, and servers of service Pool that are as unkind as is wanted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from tests.pool_cli.support.unkind_pool import UnkindPool, grant
from tests.pool_node.conftest import make_member, manager, member, shares  # noqa: F401 - fixtures

TIMEOUT_S = 60


class Commands:
    """Runs `penstock pool …` with a state directory of its own."""

    def __init__(self, folder, pool=None):
        self.folder, self.pool = folder, pool
        self.started = []

    @property
    def environment(self):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "CUDA_"))}
        named = {"PENSTOCK_POOL": self.pool.address} if self.pool else {}
        return {**kept, "PENSTOCK_STATE_DIR": str(self.folder), "COLUMNS": "160", **named}

    def command(self, *arguments):
        return [sys.executable, "-m", "penstock", "pool", *arguments]

    def __call__(self, *arguments, env=None, **options):
        return subprocess.run(
            self.command(*arguments),
            env={**self.environment, **(env or {})},
            capture_output="stdout" not in options,
            stdin=options.pop("stdin", subprocess.DEVNULL),
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            **options,
        )

    def many(self, lines):
        """(exit code, standard error) of each of many `penstock pool …`."""
        done = subprocess.run(
            [sys.executable, "-m", "tests.pool_cli.support.many_commands"],
            env=self.environment,
            input=json.dumps([["pool", *line] for line in lines]),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        return json.loads(done.stdout)

    def start(self, *arguments, env=None, **options):
        process = subprocess.Popen(
            self.command(*arguments),
            env={**self.environment, **(env or {})},
            stdin=options.pop("stdin", subprocess.DEVNULL),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        self.started.append(process)
        return process

    def close(self):
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()


@pytest.fixture
def pool(tmp_path):
    made = UnkindPool(tmp_path / "pool.sock")
    made.scripts = [grant]
    made.start()
    yield made
    made.stop()


@pytest.fixture
def penstock_pool(tmp_path, pool):
    made = Commands(tmp_path / "state", pool)
    yield made
    made.close()


@pytest.fixture
def without_pool(tmp_path):
    made = Commands(tmp_path / "state")
    yield made
    made.close()
