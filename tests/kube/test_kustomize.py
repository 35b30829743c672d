"""The kustomize bases, applied as the page says for people without Helm."""

from __future__ import annotations

import json

import pytest
import yaml
from tests.kube.cluster import images, layout
from tests.kube.cluster.toolchain import PROJECT
from tests.kube.support.chart import NAMESPACE, Chart, traces
from tests.kube.support.claims import Claims, look, seen
from tests.kube.support.nodes import forget_plugins
from tests.kube.support.waiting import until

pytestmark = pytest.mark.kube

BASES = PROJECT / "deploy/kustomize"
CLASS = "vgpu.penstock.io"


def overlay(folder, base: str, *patches: dict) -> str:
    """An overlay of the base with this tree's image and patches."""
    made = folder / base
    made.mkdir()
    name, tag = images.PENSTOCK.split(":")
    # Beside the bases: kustomize takes none by an absolute path.
    relative = "../" * len(made.resolve().parts[1:]) + str(BASES / base).lstrip("/")
    (made / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "resources": [relative],
                "images": [{"name": "penstock", "newName": name, "newTag": tag}],
                "patches": list(patches),
            }
        )
    )
    return str(made)


SIMULATED = {
    "target": {"kind": "DaemonSet", "name": "penstock-agent"},
    "patch": json.dumps(
        [
            {"op": "remove", "path": "/spec/template/spec/runtimeClassName"},
            {
                "op": "add", "path": "/spec/template/spec/containers/0/args/-",
                "value": "--simulate=h200,2",
            },
        ]
    ),
}  # fmt: skip


def label(cluster, value: str | None) -> None:
    """Labels nodes as NVIDIA's feature discovery does: the bases run agents there."""
    for name in layout.NODES:
        cluster.core.patch_node(name, {"metadata": {"labels": {"nvidia.com/gpu.present": value}}})


def test_the_kustomize_bases_give_shares_and_uninstall_completely(cluster, pods, tmp_path):
    before = frozenset(traces(cluster))
    chart = Chart(cluster, tmp_path / "values.yaml", before)
    cluster.load(images.penstock())
    for name in layout.NODES:  # of tests before: the last hook would wait until it is forgotten
        if "penstock.io/vgpu" in cluster.core.read_node(name).status.capacity:
            forget_plugins(cluster, name)
    base, uninstall = overlay(tmp_path, "base", SIMULATED), overlay(tmp_path, "uninstall")
    label(cluster, "true")
    try:
        chart.kubectl("apply", "--server-side", "--kustomize", base)
        for name in ("deployment/penstock-admit", "daemonset/penstock-agent"):
            rolled = ("rollout", "status", name, "--timeout=120s")
            chart.kubectl("--namespace", NAMESPACE, *rolled)
        claims = Claims(pods)
        request = {"name": "gpu", "exactly": {"deviceClassName": CLASS, "capacity": {
            "requests": {"memory": "2Gi", "coresPermille": "200"},
        }}}  # fmt: skip
        claims.api.create_namespaced_resource_claim(
            pods.namespace,
            {"metadata": {"name": "share"}, "spec": {"devices": {"requests": [request]}}},
        )
        look(pods, "has", {"resourceClaimName": "share"})
        (device,) = until("it says what it sees", lambda: seen(pods, "has"), within_s=90)["devices"]
        assert device["memory_bytes"] == 2 << 30
        pods.core.delete_collection_namespaced_pod(pods.namespace, grace_period_seconds=0)
        until("it is gone", lambda: not pods.core.list_namespaced_pod(pods.namespace).items)
    finally:
        # As the page has it.
        chart.kubectl("delete", "--kustomize", base, "--ignore-not-found")
        chart.kubectl("apply", "--kustomize", uninstall)
        complete = ("wait", "--for=condition=complete", "job/penstock-uninstall", "--timeout=120s")
        chart.kubectl("--namespace", NAMESPACE, *complete)
        chart.kubectl("delete", "--kustomize", uninstall)
        label(cluster, None)
    until("the namespace is gone", lambda: NAMESPACE not in {
        one.metadata.name for one in cluster.core.list_namespace().items
    })  # fmt: skip
    assert set(traces(cluster)) <= before
