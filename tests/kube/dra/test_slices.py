"""ResourceSlices of nodes that run."""

from __future__ import annotations

import signal

import pytest
from kubernetes import client
from tests.kube.support.claims import pools
from tests.kube.support.waiting import until

from penstock.kube.objects.names import WAY

pytestmark = pytest.mark.kube


def test_changed_or_deleted_slices_and_annotations_are_corrected(cluster, claims, dra_nodes):
    before = pools(claims)
    assert {devices for _, devices in before.values()} == {2}
    claims.api.delete_resource_slice("node-1-penstock.io-0")
    until("it is there again", lambda: pools(claims).get("node-1", (0, 0))[1] == 2)
    wrong = claims.api.read_resource_slice("node-2-penstock.io-0")
    wrong.spec.devices = wrong.spec.devices[:1]
    claims.api.replace_resource_slice(wrong.metadata.name, wrong)
    until("it is right again", lambda: pools(claims)["node-2"] == (before["node-2"][0] + 1, 2))
    cluster.core.patch_node("node-1", {"metadata": {"annotations": {"penstock.io/devices": "x"}}})
    until(
        "the annotation is right again",
        lambda: cluster.core.read_node("node-1").metadata.annotations["penstock.io/devices"] != "x",
    )


def test_a_node_that_changes_to_the_extender_has_no_slices_from_then_on(cluster, dra_nodes):
    """A kubelet removes slices only half a minute after their driver ended.

    Until then claims would be allocated there.
    """
    node = dra_nodes["node-2"]
    resources = client.ResourceV1Api(cluster.api)
    ours = f"spec.nodeName={node.name},spec.driver=penstock.io"

    def slices() -> list[str]:
        found = resources.list_resource_slice(field_selector=ours).items
        return [one.metadata.name for one in found]

    def label(way: str) -> None:
        cluster.core.patch_node(node.name, {"metadata": {"labels": {WAY: way}}})

    usual = node.beside.command
    node.beside.end()
    node.beside.command = (*usual, "--way-is-labelled")
    node.beside.start()
    try:
        node.until_ready()
        before = slices()
        assert before
        node.beside.end()  # for an upgrade: another comes, and what claims were given stays
        assert slices() == before
        node.beside.start()
        node.until_ready()
        label("extender")  # what the page says: the label, and at once the DaemonSet ends its Pod
        until("its slices are gone", lambda: not slices(), within_s=5)
        label("claims")
        until("and come again", slices)
        # the label while nobody looks, as when the Pod is ended before it has seen it
        node.beside.process().suspend()
        label("extender")
        outer, inner = node.beside.running, node.beside.process()
        inner.send_signal(signal.SIGTERM)
        inner.resume()
        outer.send_signal(signal.SIGCONT)  # nsenter stops with what it has started
        outer.wait(30)
        assert not slices()
    finally:
        label("claims")
        node.beside.end()
        node.beside.command = usual
        node.beside.start()
        node.until_ready()
