"""A pytest plugin that schedules `pytest -n 5`: files run in parallel, timed ones after all others.

A file of tests that measure shares, latency or grace says `pytestmark = pytest.mark.timed`. Such
tests mostly wait and hardly use a processor, so two of them run at once, but no compiler beside
them. Plain `pytest` runs all tests one by one.

Tests on a Kubernetes cluster mostly wait for it. Two workers of four or more, one of three, run
such tests alone, each with its own cluster; they end with their clusters before the first timed
test.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from collections.abc import Generator

    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

# By folder or file, so that workers end together.
LONGEST_FIRST = (
    "dra", "plugin", "install", "test_control_scaling.py",
    "native", "sanitize", "gate", "programs_at_random", "enforce", "containers", "slices", "cli",
    "memory",
)  # fmt: skip

OPERATIONS = ("tests/card/test_operations.py",)  # a third of its environment's time
TIMED_CONTAINERS = ("tests/containers/test_evasions.py",)  # run after the other container tests


TIMED_AT_ONCE = 2  # timed tests: of three, some fail
LOOKS_S = 0.05
CLUSTER = "on a cluster: "  # begins the name of each portion that needs one
ON_A_CLUSTER = "pytest.mark.kube"  # as their files say it


def is_timed(item: pytest.Item) -> bool:
    return item.get_closest_marker("timed") is not None


@functools.cache
def needs_cluster(file: Path) -> bool:
    """Read from the file, because the scheduler knows nothing of tests but their names."""
    return ON_A_CLUSTER in file.read_text()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order in which files are handed out: the cluster's first, timed ones last."""

    def place(item: pytest.Item) -> tuple[bool, bool, int]:
        names = item.path.name, item.path.parent.name
        ranks = [at for at, name in enumerate(LONGEST_FIRST) if name in names]
        rank = min(ranks, default=len(LONGEST_FIRST))
        return not needs_cluster(item.path), is_timed(item), rank

    items.sort(key=place)
    kinds: dict[Path, set[bool]] = {}
    for item in items:
        kinds.setdefault(item.path, set()).add(is_timed(item))
    if mixed := [path.name for path, kind in kinds.items() if len(kind) > 1]:
        # A worker that is given such a file early waits there until all others are done.
        raise pytest.UsageError(f"{', '.join(mixed)}: all tests of a file are timed, or none is")


class Barrier:
    """In a worker: its first timed test waits until no worker runs untimed tests any more.

    A timed test has one of `TIMED_AT_ONCE` places, and one that is marked `alone` has all of them.
    Who waits for places lets no other begin: workers whose tests overlap would otherwise keep a
    test that is to be alone waiting until their last.
    """

    def __init__(self, file: Path) -> None:
        self._lock = file.open("r+b")
        self._places = [
            file.with_suffix(f".place{number}").open("a+b") for number in range(TIMED_AT_ONCE)
        ]
        self._next = file.with_suffix(".next").open("a+b")
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
        wanted = TIMED_AT_ONCE if item.get_closest_marker("alone") is not None else 1
        fcntl.flock(self._next, fcntl.LOCK_EX)
        taken = self._take(wanted)
        fcntl.flock(self._next, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            for place in taken:
                fcntl.flock(place, fcntl.LOCK_UN)

    def _take(self, wanted: int) -> list[BinaryIO]:
        """Waits for so many places, and holds them."""
        taken: list[BinaryIO] = []
        while len(taken) < wanted:
            for place in self._places:
                if place not in taken and len(taken) < wanted:
                    with contextlib.suppress(BlockingIOError):
                        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        taken.append(place)
            if len(taken) < wanted:
                time.sleep(LOOKS_S)
        return taken

    def pytest_unconfigure(self) -> None:
        """This worker has run all of its tests; its process stays, but nobody waits for it."""
        self._lock.close()


class Portions(LoadScopeScheduling):
    """Hands out tests in portions: mostly a file at a time."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        folder = Path(file).parent.name
        if folder == "native":  # tests share nothing, and one takes as long as a file of others
            return nodeid
        if file in OPERATIONS:  # both layouts of an operation have one reference
            return nodeid.rsplit("-", 1)[0]
        if folder == "containers" and file not in TIMED_CONTAINERS:
            return folder  # CDI specs have one writer a machine
        return f"{CLUSTER}{file}" if needs_cluster(self.config.rootpath / file) else file

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Assigns the next portion of the worker's own kind; without one, shuts the worker down."""
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
        """The workers that run tests on clusters; none if no such tests are left to run."""
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
    """Runs in the scheduling process before a worker starts."""
    config = node.config
    if LOCK not in config.stash:
        descriptor, config.stash[LOCK] = tempfile.mkstemp(prefix="penstock-tests-")
        os.close(descriptor)
    node.workerinput["lock"] = config.stash[LOCK]


def pytest_unconfigure(config: pytest.Config) -> None:
    if LOCK in config.stash:
        with contextlib.suppress(FileNotFoundError):
            Path(config.stash[LOCK]).unlink()
        places = (f".place{number}" for number in range(TIMED_AT_ONCE))
        for suffix in (".next", *places):
            Path(config.stash[LOCK]).with_suffix(suffix).unlink(missing_ok=True)
