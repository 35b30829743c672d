"""Pods that are admitted: completed and bounded by policies, then changed by the scheduler."""

from __future__ import annotations

import json

import pytest
from kubernetes.client import ApiException
from tests.kube.support.admission import (
    asking,
    claim,
    claiming,
    make_claims,
    make_policy,
    patient_policy,
    refused,
    tried,
)
from tests.kube.support.placing import GIB, Placing, devices, node, pod
from tests.kube.support.waiting import until

from penstock.kube.objects.names import HELD, PLACED, RESIZE
from penstock.kube.objects.placement import write_placement
from penstock.model.share import Share

pytestmark = pytest.mark.kube


def test_a_policy_completes_and_bounds_extended_resources_and_bounds_claims(
    admission, cluster, pods
):
    where = pods.namespace
    make_policy(cluster, pods, "usual", mode="elastic")
    make_claims(
        cluster, pods, claim("good", memory="8Gi", coresPermille="300"),
        claim("unsaid", coresPermille="100"), claim("large", memory="9Gi", coresPermille="301"),
    )  # fmt: skip
    # more than it allows, and what cannot be held against it
    said = refused(pods, asking({"penstock.io/memory": "9Gi", "penstock.io/cores-permille": "301"}))
    assert (
        f"QuotaPolicy {where}/usual allows at most 8Gi of each device; request 8Gi or less" in said
    )
    assert "at most 300 of each device" in said
    assert "bounds penstock.io/cores-permille" in refused(pods, asking({"penstock.io/tflops": "1"}))
    said = refused(pods, claiming("large"))
    assert "claim gpu, request gpu, requests memory: 9Gi" in said
    assert "requests coresPermille: 301" in said
    assert "the Pod" not in said
    # what is left out is the policy's; a claim's is not for a policy to say
    made, warnings = tried(pods, asking({"penstock.io/vgpu": "1"}))
    limits = made.spec.containers[0].resources.limits
    assert limits["penstock.io/memory"] == str(8 * GIB)
    assert limits["penstock.io/cores-permille"] == "300"
    assert made.metadata.annotations == {
        "penstock.io/mode": "elastic", "penstock.io/on-exceed": "terminate",
        "penstock.io/grace": "10s",
    }  # fmt: skip
    assert [one.condition_type for one in made.spec.readiness_gates] == ["penstock.io/running"]
    assert not warnings
    made, warnings = tried(pods, claiming("unsaid"))
    assert "does not set memory: it gets an eighth of the device" in warnings
    assert [one.condition_type for one in made.spec.readiness_gates] == ["penstock.io/running"]
    assert refused(pods, claiming("good")) == ""
    lifted = asking(annotations={"penstock.io/on-exceed": "deny"})
    assert f"QuotaPolicy {where}/usual sets terminate" in refused(pods, lifted)

    # of two that select it the strictest word of each holds
    patient_policy(cluster, pods)
    make_policy(cluster, pods, "rival", {"app": "patient"}, limits={"memory": "1Gi"})
    both = asking({"penstock.io/vgpu": "1"})
    both["metadata"]["labels"] = {"app": "patient"}

    def is_both() -> bool:
        made, _ = tried(pods, both)
        limits = made.spec.containers[0].resources.limits
        annotations = made.metadata.annotations
        return (
            limits["penstock.io/memory"] == str(GIB)
            and limits["penstock.io/cores-permille"] == "300"
            and annotations["penstock.io/on-exceed"] == "terminate"
        )

    until("both hold", is_both)


def test_a_good_pod_is_completed_and_only_the_scheduler_says_which_devices_it_has(
    admission, cluster, pods, tmp_path
):
    cluster.core.create_node(node("fitting", devices("fitting", 1)))
    placing = Placing(cluster, tmp_path, port=9473)
    try:
        body = asking({"penstock.io/memory": "10Gi", "penstock.io/cores-permille": "100"})
        body["metadata"]["name"] = "good"
        made = pods.core.create_namespaced_pod(pods.namespace, body)
        assert made.spec.scheduler_name == "penstock-scheduler"
        assert made.metadata.labels == {"penstock.io/vgpu": "true"}
        limits = made.spec.containers[0].resources.limits
        assert limits == {
            "penstock.io/vgpu": "1", "penstock.io/memory": "10Gi",
            "penstock.io/cores-permille": "100",
        }  # fmt: skip
        assert made.spec.containers[0].resources.requests == limits
        large = asking({"penstock.io/memory": "500Gi", "penstock.io/cores-permille": "1"})
        _, _, headers = pods.core.create_namespaced_pod_with_http_info(
            pods.namespace, large, dry_run="All"
        )
        assert "more memory than any device here has (80Gi)" in headers["Warning"]
        # with its scheduler it is bound, and from then on its devices are nobody else's to say
        placing.start()
        until("it is placed", lambda: pods.read("good").spec.node_name == "fitting")
        written = pods.read("good").metadata.annotations[PLACED]
        for name in ("penstock.io/on-exceed", "penstock.io/grace"):
            body = {"metadata": {"annotations": {name: "deny"}}}
            with pytest.raises(ApiException, match="QuotaPolicy as of the Pod's creation"):
                pods.core.patch_namespaced_pod("good", pods.namespace, body)
        for change in (None, "{}", written.replace("GPU", "MPU")):
            body = {"metadata": {"annotations": {PLACED: change}}}
            for patch in (
                pods.core.patch_namespaced_pod, pods.core.patch_namespaced_pod_status,
            ):  # fmt: skip
                with pytest.raises(ApiException, match="only the scheduler writes it"):
                    patch("good", pods.namespace, body)
        with pytest.raises(ApiException, match="only the scheduler writes it"):
            annotate(pods, "good", HELD, written)
        pods.core.patch_namespaced_pod("good", pods.namespace, {"metadata": {"labels": {"a": "b"}}})
        # A running Pod's share: refused here what the device does not have, reserved what it has.
        for memory, why in (("81Gi", "the device has 80Gi"), ("81", "such as 81Gi")):
            with pytest.raises(ApiException, match=why):
                annotate(pods, "good", RESIZE, json.dumps({"main": {"memory": memory}}))
        annotate(pods, "good", RESIZE, '{"main": {"memory": "70Gi"}}')
        grown = write_placement({"main": {"GPU-fitting-0": Share(70 * GIB, 100)}})
        until("it grows", lambda: pods.read("good").metadata.annotations[PLACED] == grown)
        pods.core.create_namespaced_pod(pods.namespace, pod("other", scheduler="none"))
        forged = {
            "metadata": {"name": "other", "annotations": {PLACED: written}},
            "target": {"kind": "Node", "name": "fitting"},
        }
        with pytest.raises(ApiException, match="a Binding by"):
            pods.core.create_namespaced_pod_binding(
                "other", pods.namespace, forged, _preload_content=False
            )
    finally:
        placing.stop()
        pods.core.delete_collection_namespaced_pod(pods.namespace, grace_period_seconds=0)
        cluster.core.delete_node("fitting")


def annotate(pods, name: str, key: str, text: str) -> None:
    pods.core.patch_namespaced_pod(name, pods.namespace, {"metadata": {"annotations": {key: text}}})
