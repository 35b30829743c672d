"""The chart, installed by helm on the real cluster from this tree's own image."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
import yaml
from tests.kube.chart import NAMESPACE, RELEASE, Chart, HelmError, lint, render, traces
from tests.kube.cluster import layout, programs
from tests.kube.cluster.toolchain import PROJECT

pytestmark = pytest.mark.kube


@pytest.fixture(scope="module")
def built():
    return programs.build()


@pytest.fixture(scope="module")
def chart(cluster, tmp_path_factory):
    """Installed for the tests here; what is left when it is gone again is a test of its own."""
    before = set(traces(cluster))
    made = Chart(cluster, tmp_path_factory.mktemp("chart") / "values.yaml")
    made.before = before
    made.install()
    yield made
    if NAMESPACE in {one.metadata.name for one in cluster.core.list_namespace().items}:
        made.uninstall()
        made.remove_namespace()


def test_helm_finds_nothing_wrong_and_every_value_may_be_changed(built):
    assert "0 chart(s) failed" in lint(built)
    usual = {(one["kind"], one["metadata"]["name"]) for one in render(built)}
    assert ("DaemonSet", "penstock-agent") in usual
    more = render(built, "--set", "monitoring.podMonitor=true,monitoring.rules=true")
    added = {
        one["kind"]: one for one in more if (one["kind"], one["metadata"]["name"]) not in usual
    }
    assert set(added) == {"PodMonitor", "PrometheusRule"}
    own = yaml.safe_load((PROJECT / "deploy/prometheus/rules.yaml").read_text())
    assert added["PrometheusRule"]["spec"] == own


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("agent.simulat=h200", "simulat"),
        ("way=dar", "way"),
        ("paths.state=run/penstock", "paths/state"),
        ("agent.measured=kill", "measured"),
        ("uninstall.waitSeconds=forever", "waitSeconds"),
    ],
)
def test_a_value_that_means_nothing_is_refused_by_its_name(built, value, why):
    with pytest.raises(HelmError, match=why):
        render(built, "--set", value)


def test_what_is_generated_is_as_the_chart_and_its_sources_have_it(built, tmp_path):
    there = tmp_path / "deploy"
    shutil.copytree(PROJECT / "deploy", there)
    for generated in [
        *there.glob("helm/penstock/files/*"),
        *there.glob("kustomize/*/penstock.yaml"),
    ]:
        shutil.rmtree(generated) if generated.is_dir() else generated.unlink()
    command = [PROJECT / "deploy/render.sh", there]
    subprocess.run(command, check=True, env={"PATH": "/usr/bin:/bin", "HELM": str(built / "helm")})
    kept = {path.relative_to(there): path.read_text() for path in there.rglob("*.yaml")}
    own = PROJECT / "deploy"
    assert kept == {path.relative_to(own): path.read_text() for path in own.rglob("*.yaml")}
    for base in ("base", "uninstall"):
        said = subprocess.run(
            [built / "kubectl", "kustomize", there / "kustomize" / base],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert {
            one["metadata"].get("namespace", NAMESPACE) for one in yaml.safe_load_all(said)
        } == {NAMESPACE}


CAPABILITIES = {  # by their numbers in the kernel
    0: "CHOWN", 1: "DAC_OVERRIDE", 2: "DAC_READ_SEARCH", 3: "FOWNER", 5: "KILL",
    19: "SYS_PTRACE", 23: "SYS_NICE",
}  # fmt: skip


def test_an_agent_comes_up_on_each_node_with_its_devices_and_little_of_roots_power(chart):
    for node in layout.NODES:
        devices = json.loads(chart.on_agent(node, "penstock", "devices", "-o", "json"))
        (simulated,) = [one for one in devices["kinds"] if one["kind"] == "simulated"]
        assert [one["model"] for one in simulated["devices"]] == ["NVIDIA H200"] * 2
        status = chart.on_agent(node, "cat", "/proc/self/status")
        (bound,) = re.findall(r"^CapBnd:\s+([0-9a-f]+)$", status, re.MULTILINE)
        assert int(bound, 16) == sum(1 << number for number in CAPABILITIES)
        assert re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE)
        assert re.search(r"^Seccomp:\s+2$", status, re.MULTILINE)
        with pytest.raises(HelmError, match="Read-only file system"):
            chart.on_agent(node, "touch", "/opt/penstock/here")


def test_uninstalling_while_a_pod_has_a_share_is_refused_and_names_it(chart, cluster, pods):
    placed = {"penstock.io/placed": json.dumps({"main": {"GPU-0": [1 << 30, 100]}})}
    pods.start("user", "sleep", "1000", annotations=placed)
    with pytest.raises(HelmError):
        chart.uninstall()
    log = chart.kubectl("--namespace", NAMESPACE, "logs", f"job/{RELEASE}-uninstall-check")
    assert f"{pods.namespace}/user" in log
    assert "delete them first" in log
    for node in layout.NODES:
        chart.on_agent(node, "penstock", "ps")


def test_uninstalling_leaves_nothing(chart, cluster):
    node = layout.NODES[0]
    chart.on_agent(node, "penstock", "grant", "left", "--memory", "8Gi", "--cores", "30")
    # what its parts write there, whichever way is used
    mark = {
        "metadata": {
            "annotations": {"penstock.io/devices": "[]"},
            "labels": {"penstock.io/way": "dra"},
        }
    }
    cluster.core.patch_node(node, mark)
    cluster.core.patch_node_status(node, {"status": {"capacity": {"penstock.io/vgpu": "8"}}})
    shown = set(traces(cluster))
    for place in ("/run/penstock", "/var/lib/penstock", "/var/run/cdi"):
        assert f"{node}:{place}" in shown
    assert f"{node}: penstock.io/vgpu" in shown
    chart.uninstall()
    chart.remove_namespace()
    assert set(traces(cluster)) == chart.before == set()
