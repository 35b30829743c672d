"""A pytest plugin: `pytest -n 4` runs files side by side, those that keep time after all others.

A file of tests that measure shares, latency or grace says `pytestmark = pytest.mark.timed`. Such
tests hardly use a processor: they wait. Two of them beside each other find both cores idle, and no
compiler beside them. Plain `pytest` runs all one by one.

What needs a Kubernetes cluster mostly waits for it: two workers of four or more, one of three, do
that and nothing else, each with a cluster of its own, and end, and it with them, before the first
test that keeps time.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from collections.abc import Generator

    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

# By folder or file, so that workers end together. What needs the image comes when it is made.
LONGEST_FIRST = (
    "test_dra.py", "test_plugin.py", "test_install.py", "test_control_scaling.py",
    "native", "sanitize", "gate", "programs_at_random", "enforce", "containers", "turns", "cli",
    "memory",
)  # fmt: skip

TIMED_CONTAINERS = ("tests/containers/test_evasions.py",)  # come when the others are through


CLUSTER = "on a cluster: "  # begins the name of each portion that needs one
ON_A_CLUSTER = "pytest.mark.kube"  # as their files say it


def is_timed(item: pytest.Item) -> bool:
    return item.get_closest_marker("timed") is not None


@functools.cache
def needs_cluster(file: Path) -> bool:
    """Asked of the file: who hands out tests knows nothing but their names."""
    return ON_A_CLUSTER in file.read_text()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order in which files are handed out: the cluster's first, timed ones last."""

    def place(item: pytest.Item) -> tuple[bool, bool, int]:
        names = item.path.name, item.path.parent.name
        ranks = [at for at, name in enumerate(LONGEST_FIRST) if name in names]
        rank = min(ranks, default=len(LONGEST_FIRST))
        return not needs_cluster(item.path), is_timed(item), rank

    items.sort(key=place)


class Barrier:
    """In a worker: its first timed test waits until no worker runs others any more.

    One that is marked `alone` as well also waits for the other worker's, and that one for it.
    """

    def __init__(self, file: Path) -> None:
        self._lock = file.open("r+b")
        self._timed = file.with_suffix(".timed").open("a+b")
        self._passed = False
        fcntl.flock(self._lock, fcntl.LOCK_SH)  # before any test runs, until the first timed one

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if not is_timed(item):
            return (yield)
        if not self._passed:
            fcntl.flock(self._lock, fcntl.LOCK_EX)  # gives the shared one back while it waits
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            self._passed = True
        alone = item.get_closest_marker("alone") is not None
        fcntl.flock(self._timed, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        try:
            return (yield)
        finally:
            fcntl.flock(self._timed, fcntl.LOCK_UN)

    def pytest_unconfigure(self) -> None:
        """This worker has run all of its tests, though its process stays: nobody waits for it."""
        self._lock.close()


class Portions(LoadScopeScheduling):
    """What a worker is given at a time: a file, mostly."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        folder = Path(file).parent.name
        if folder == "native":  # tests share nothing, and one takes as long as a file of others
            return nodeid
        if folder == "containers" and file not in TIMED_CONTAINERS:
            return folder  # CDI specs have one writer a machine
        return f"{CLUSTER}{file}" if needs_cluster(self.config.rootpath / file) else file

    def _assign_work_unit(self, node: WorkerController) -> None:
        """The next portion of the worker's own kind; without one it ends when it is through."""
        own = next((name for name in self.workqueue if self._is_for(node, name)), None)
        if own is not None:
            self.workqueue.move_to_end(own, last=False)
            super()._assign_work_unit(node)
        elif not node.shutting_down:
            node.shutdown()

    def _is_for(self, node: WorkerController, portion: str) -> bool:
        return not self._with_clusters or (
            (node in self._with_clusters) == portion.startswith(CLUSTER)
        )

    @functools.cached_property
    def _with_clusters(self) -> list[WorkerController]:
        """None where there is no such work; asked when workers without any have been ended."""
        workers = sorted(self.assigned_work, key=lambda one: one.gateway.id)
        if not any(portion.startswith(CLUSTER) for portion in self.workqueue):
            return []
        return workers[: max(0, min(2, len(workers) - 2))]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Portions:
    config.option.loadscopereorder = False  # the order is ours
    return Portions(config, log)


LOCK = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        config.pluginmanager.register(Barrier(Path(worker["lock"])))


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
        Path(config.stash[LOCK]).with_suffix(".timed").unlink(missing_ok=True)
