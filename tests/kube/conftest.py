"""The cluster that tests share: started for them, unless one is up already."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from tests.kube.cluster import NotToBeHadError, images, layout, running
from tests.kube.cluster.layout import API_ADDRESS
from tests.kube.support import controlling
from tests.kube.support.controlling import PAGES_PORT, Controllers, Things
from tests.kube.support.pods import Pods
from tests.kube.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOG_LINES = 15  # of each of our processes on the nodes, below a test's failure


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[running.Cluster]:
    """The cluster; a test is skipped, with the reason, where the machine cannot have one.

    Each xdist worker has a cluster of its own.
    """
    state, was_up = layout.STATE, False
    if hasattr(request.config, "workerinput"):
        state = layout.beside(request.config.workerinput["workerid"])
    else:
        before = layout.stored(state)
        was_up = bool(before and running.services(before))
    try:
        found = running.up(state)
    except NotToBeHadError as why:
        pytest.skip(f"no Kubernetes cluster: {why}")
    if any("chart" in item.fixturenames for item in request.session.items):
        threading.Thread(target=_make_image, daemon=True).start()
    yield found
    found.close()
    if not was_up:
        running.down(state)


def _make_image() -> None:
    """Builds this tree's image in a minute, while tests that do not need it run."""
    with contextlib.suppress(NotToBeHadError):  # who needs it is told
        images.penstock()


@pytest.fixture(scope="module")
def controllers(
    cluster: running.Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Controllers]:
    """Two processes of `penstock kube control`: one leads and one waits."""
    controlling.define(cluster)
    made = Controllers(cluster, tmp_path_factory.mktemp("control"))
    made.start("first")
    made.start("second")
    until("one leads", made.leader)
    yield made
    made.stop()
    controlling.undefine(cluster)


@pytest.fixture
def things(cluster: running.Cluster, pods: Pods, controllers: Controllers) -> Iterator[Things]:
    """What a controller acts on, in the namespace of the test's Pods."""
    made = Things(cluster, pods.namespace)
    yield made
    made.remove()


@pytest.fixture
def pods(cluster: running.Cluster, request: pytest.FixtureRequest) -> Iterator[Pods]:
    """Pods of one test, in a namespace of their own that goes with them."""
    made = Pods.in_new_namespace(cluster.core)
    yield made
    made.remove()


@pytest.fixture
def pages(cluster: running.Cluster, tmp_path: Path) -> Iterator[Path]:
    """A folder whose files Pods and controllers get over HTTP."""
    folder = tmp_path / "pages"
    folder.mkdir()
    process = subprocess.Popen(
        [
            *controlling.netns(cluster), sys.executable, "-m", "http.server", str(PAGES_PORT),
            "--bind", API_ADDRESS, "--directory", folder,
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    yield folder
    process.kill()
    process.wait()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """Adds the events and logs of a failed test's Pods to its report."""
    report = yield
    made = getattr(item, "funcargs", {}).get("pods")
    if report.when == "call" and report.failed and isinstance(made, Pods):
        report.sections.append(("events of its namespace", made.warnings()))
        logs = item.funcargs["cluster"].layout.logs
        for file in sorted(logs.glob("*-penstock-*.log")):
            lines = file.read_text(errors="replace").splitlines()[-LOG_LINES:]
            report.sections.append((f"end of {file.name}", "\n".join(lines)))
    return report
