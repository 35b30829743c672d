"""A training job of two groups, whose cards are Pods with shares; one node is drained meanwhile."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from kubernetes import client
from tests.kube.cluster import images
from tests.kube.cluster.toolchain import PROJECT
from tests.kube.support.chart import BY_CLAIMS, BY_PLUGIN
from tests.kube.support.plugin_pods import slots
from tests.kube.support.pods import INSIDE
from tests.kube.support.waiting import until

from penstock.kube.objects.names import PLACED, WAY

pytestmark = pytest.mark.kube

TORCH = PROJECT / "build/torch"
STEPS = 24
STAYS, DRAINED = BY_PLUGIN, BY_CLAIMS  # nodes
MOUNTS = {
    "/opt/python": "BASE", "/opt/torch": "SITE", "/opt/controller": PROJECT / "controller",
    "/opt/proto": PROJECT / "proto", "/opt/program": INSIDE,
}  # fmt: skip
ENVIRONMENT = {
    "PATH": "/opt/program/bin:/opt/python/bin:/usr/bin:/bin",
    "LD_LIBRARY_PATH": "/opt/python/lib",
    "PYTHONPATH": "/opt/controller:/opt/proto:/opt/torch",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
}
SHARE = {"penstock.io/memory": "2Gi", "penstock.io/cores-permille": "100"}


@pytest.fixture
def one_way(chart, cluster, pods):
    """Both nodes give shares by extended resources, so that a Pod may go from one to the other."""
    resources = client.ResourceV1Api(cluster.api)

    def give(way: str) -> None:
        cluster.core.patch_node(DRAINED, {"metadata": {"labels": {WAY: way}}})

    def slices() -> list[str]:
        found = resources.list_resource_slice(field_selector=f"spec.nodeName={DRAINED}").items
        return [one.metadata.name for one in found]

    give("extender")
    until("it gives shares", lambda: slots(cluster, DRAINED) > 0, within_s=90)
    until("by this way alone", lambda: not slices(), within_s=90)
    yield
    client.BatchV1Api(cluster.api).delete_collection_namespaced_job(
        pods.namespace, propagation_policy="Background"
    )  # or they would make Pods again while those of the test are removed
    cluster.core.patch_node(DRAINED, {"spec": {"unschedulable": False}})
    for node in (STAYS, DRAINED):
        forgotten = {"test/a": None, "test/b": None}
        cluster.core.patch_node(node, {"metadata": {"labels": forgotten}})
    give("claims")
    until("it is as it was", slices, within_s=90)


@pytest.fixture(scope="module")
def places():
    """The folders of the Python that has torch: its base, and its packages."""
    python = TORCH / "bin/python"
    if not python.exists():
        pytest.skip(f"{python} is missing: make test-torch makes it")
    asked = "import sys, sysconfig; print(sys.base_prefix, sysconfig.get_path('purelib'))"
    said = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout
    base, site = said.split()
    return {"BASE": base, "SITE": str(Path(site).resolve())}


@pytest.fixture(scope="module")
def undisturbed(places):
    """The losses on two cards of this machine. More would be added up in another order."""
    del places
    environment = {
        **os.environ, "PENSTOCK_CARD": "cpu=1,cpu=1", "PENSTOCK_CARD_AS": "cuda",
        "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{PROJECT}/controller:{PROJECT}/proto",
    }  # fmt: skip
    command = [TORCH / "bin/python", "-W", "ignore", INSIDE / "train.py", str(STEPS), "0"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    return losses(done.stdout)


def losses(log: str) -> list[str]:
    return re.findall(r"^step \d+: loss (\S+)$", log, re.MULTILINE)


def document(places: dict[str, str], namespace: str) -> dict[str, object]:
    volumes = [
        {"name": path.rpartition("/")[2], "mountPath": path, "readOnly": True,
         "source": {"hostPath": {"path": places.get(str(source), str(source))}}}
        for path, source in MOUNTS.items()
    ]  # fmt: skip
    group = {"card": "cpu", "speed": 1, "limits": SHARE, "environment": ENVIRONMENT,
             "volumes": volumes}  # fmt: skip
    kubernetes = {
        "image": images.DEBIAN, "namespace": namespace,
        "groups": [
            {"name": "a", "cards": 1, "nodeSelector": {"test/a": "yes"}, **group},
            {"name": "b", "cards": 1, "nodeSelector": {"test/b": "yes"}, **group},
        ],
        "program": {"nodeSelector": {"test/a": "yes"}, "volumes": volumes},
    }  # fmt: skip
    return {
        "apiVersion": "penstock.io/v1alpha1", "kind": "TrainJob",
        "metadata": {"project": "test", "name": "drained"},
        "spec": {
            "command": ["python3", "/opt/program/train.py", str(STEPS), "0.5"],
            "environment": ENVIRONMENT, "kubernetes": kubernetes,
        },
    }  # fmt: skip


def render(job: dict[str, object], folder: Path) -> Path:
    """The file that `penstock train render` makes of a job."""
    file, rendered = folder / "job.yaml", folder / "objects.yaml"
    file.write_text(yaml.safe_dump(job))
    command = [sys.executable, "-m", "penstock", "train", "render", file]
    with rendered.open("w") as out:
        subprocess.run(command, stdout=out, check=True, timeout=60)
    return rendered


class Parts:
    """The Pods of the job, by part and index; one that was replaced counts no longer."""

    def __init__(self, pods):
        self._pods = pods

    def of(self, part: str) -> dict[str, client.V1Pod]:
        found = self._pods.core.list_namespaced_pod(
            self._pods.namespace, label_selector=f"penstock.io/train-part={part}"
        ).items
        return {
            one.metadata.labels["batch.kubernetes.io/job-completion-index"]: one
            for one in found
            if one.metadata.deletion_timestamp is None and one.status.phase != "Failed"
        }

    @property
    def log(self) -> str:
        """What the program has printed; nothing before there is its Pod."""
        return "".join(self._pods.log(one.metadata.name) for one in self.of("program").values())

    def drain(self, node: str) -> None:
        """As `kubectl drain` does, the Pods of this job alone."""
        core, namespace = self._pods.core, self._pods.namespace
        core.patch_node(node, {"spec": {"unschedulable": True}})
        for one in core.list_namespaced_pod(namespace).items:
            if one.spec.node_name == node:
                name = one.metadata.name
                eviction = {"metadata": {"name": name, "namespace": namespace}}
                core.create_namespaced_pod_eviction(name, namespace, eviction)

    def run_on(self, part: str, node: str) -> bool:
        """Whether all Pods of a part run there."""
        return {(one.spec.node_name, one.status.phase) for one in self.of(part).values()} == {
            (node, "Running")
        }


def let_run(core, node: str, part: str) -> None:
    core.patch_node(node, {"metadata": {"labels": {f"test/{part}": "yes"}}})


def complete_jobs(cluster, namespace: str) -> list[str]:
    found = client.BatchV1Api(cluster.api).list_namespaced_job(namespace).items
    return sorted(
        one.metadata.name
        for one in found
        if any(two.type == "Complete" and two.status == "True"
               for two in one.status.conditions or [])
    )  # fmt: skip


@pytest.mark.usefixtures("one_way")
def test_a_job_whose_node_is_drained_goes_on_elsewhere_with_the_losses_of_an_undisturbed_one(
    chart, pods, places, undisturbed, tmp_path
):
    assert len(undisturbed) == STEPS
    let_run(pods.core, STAYS, "a")
    let_run(pods.core, DRAINED, "b")
    chart.kubectl("apply", "--filename", render(document(places, pods.namespace), tmp_path))
    parts = Parts(pods)
    until("it trains", lambda: len(losses(parts.log)) >= STEPS // 4, within_s=120)
    assert parts.run_on("a", STAYS)
    assert parts.run_on("b", DRAINED)
    for one in (*parts.of("a").values(), *parts.of("b").values()):
        assert PLACED in one.metadata.annotations, "it has a share"

    let_run(pods.core, STAYS, "b")
    parts.drain(DRAINED)
    until("the group runs on the other node", lambda: parts.run_on("b", STAYS), within_s=90)
    until("the program has succeeded",
          lambda: complete_jobs(chart.cluster, pods.namespace)[:1] == ["test-drained"],
          within_s=120)  # fmt: skip
    assert losses(parts.log) == undisturbed
    assert "all cards run again" in parts.log, "no card was lost"
    names = ["test-drained", "test-drained-a", "test-drained-b"]
    until("cards end with their run",
          lambda: complete_jobs(chart.cluster, pods.namespace) == names)  # fmt: skip
    own = "penstock.io/train-project=test,penstock.io/train-run=drained"
    chart.kubectl("delete", "jobs,services,secrets", "--selector", own, "-n", pods.namespace)
    assert not pods.core.list_namespaced_secret(pods.namespace).items
