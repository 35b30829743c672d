"""A pytest plugin: under `pytest -n 2` files run side by side, but those that keep time alone.

A file of tests that measure shares, latency or grace says `pytestmark = pytest.mark.timed`. These
come last, and one worker waits while the other runs one. Plain `pytest` runs all one by one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

LONGEST_FIRST = ("native", "sanitize", "containers", "cli", "memory")  # two workers end together


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order in which files are handed out to workers; timed ones last."""

    def place(item: pytest.Item) -> tuple[bool, int]:
        folder = item.path.parent.name
        rank = LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)
        return item.get_closest_marker("timed") is not None, rank

    items.sort(key=place)


class Beside:
    """Two workers: one runs a timed file while the other waits; else both run what they like."""

    def __init__(self, file: Path) -> None:
        self._lock = file.open("r+b")
        self._held = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator:
        if not self._held:  # fixtures of a file live as long as it: so does the lock
            timed = item.get_closest_marker("timed") is not None
            fcntl.flock(self._lock, fcntl.LOCK_EX if timed else fcntl.LOCK_SH)
            self._held = True
        try:
            return (yield)
        finally:
            if nextitem is None or nextitem.path != item.path:
                fcntl.flock(self._lock, fcntl.LOCK_UN)
                self._held = False


class Portions(LoadScopeScheduling):
    """What a worker is given at a time: a file, mostly."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        folder = Path(file).parent.name
        if folder == "native":  # tests share nothing, and one takes as long as a file of others
            return nodeid
        return folder if folder == "containers" else file  # CDI specs have one writer a machine


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Portions:
    config.option.loadscopereorder = False  # the order is ours
    return Portions(config, log)


LOCK = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        config.pluginmanager.register(Beside(Path(worker["lock"])))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Before a worker starts, in the process that hands out the tests."""
    config = node.config
    if LOCK not in config.stash:
        descriptor, config.stash[LOCK] = tempfile.mkstemp(prefix="penstock-tests-")
        os.close(descriptor)
    node.workerinput["lock"] = config.stash[LOCK]


def pytest_unconfigure(config: pytest.Config) -> None:
    if LOCK in config.stash:
        with contextlib.suppress(FileNotFoundError):
            Path(config.stash[LOCK]).unlink()
