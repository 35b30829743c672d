"""What is refused before it is stored, and why."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kubernetes import client
from kubernetes.client import ApiException
from tests.kube.support.admission import (
    PORT,
    asking,
    claim,
    claiming,
    make_claims,
    make_policy,
    refused,
    refused_claim,
    tried,
)
from tests.kube.support.placing import GIB, pod
from tests.kube.support.pods import Pods
from tests.kube.support.waiting import until

from penstock.kube.objects.names import PLACED, RESIZE
from penstock.kube.objects.placement import write_placement
from penstock.model.share import Share

pytestmark = pytest.mark.kube


WRONG = {
    "cores 150": (asking({"penstock.io/cores": "150"}), "did you mean penstock.io/cores-permille?"),
    "cores 1500": (
        asking({"penstock.io/cores-permille": "1500"}),
        "the maximum is 1000 permille, a whole device",
    ),
    "zero": (asking({"penstock.io/memory": "0"}), "it must be greater than zero"),
    "no count": (asking({"penstock.io/vgpu": "0"}), "it must be greater than zero"),
    "a fraction": (asking({"penstock.io/cores-permille": "12500m"}), "it must be a whole number"),
    "no unit": (asking({"penstock.io/memory": "40"}), "such as 40Gi"),
    "misspelt": (asking({"penstock.io/memmory": "1Gi"}), "did you mean penstock.io/memory?"),
    "both": (
        asking({"penstock.io/cores-permille": "100", "penstock.io/tflops": "10"}),
        "both set the amount of compute",
    ),
    "requests": (
        asking(container={"resources": {
            "limits": {"penstock.io/memory": "2Gi"}, "requests": {"penstock.io/memory": "1Gi"},
        }}),
        "write it once, under limits",
    ),
    "privileged": (asking(container={"securityContext": {"privileged": True}}), "is privileged"),
    "node": (asking(nodeName="node-1"), "use nodeSelector: kubernetes.io/hostname"),
    "scheduler": (asking(schedulerName="volcano"), "leave schedulerName out"),
    "gvisor": (asking(runtimeClassName="sandboxed"), "runs containers in the sandbox runsc"),
    "policy": (
        asking(annotations={"penstock.io/policy": "smal"}),
        "has no such QuotaPolicy, but small; name an existing policy",
    ),
    "mode": (asking(annotations={"penstock.io/mode": "loose"}), "strict or elastic"),
    "resize": (
        asking(annotations={RESIZE: '{"main": {"memory": "2Gi"}}'}),
        "write the quantities under limits",
    ),
    "placed": (
        asking(annotations={PLACED: write_placement({"main": {"GPU-x": Share(GIB, 1)}})}),
        "only the scheduler decides which devices a Pod gets",
    ),
    "both ways": (
        asking(resourceClaims=[{"name": "gpu", "resourceClaimName": "good"}]),
        "each node serves only one of the two ways",
    ),
    "privileged with a claim": (
        claiming(container={"securityContext": {"privileged": True}}), "is privileged",
    ),
    "node with a claim": (claiming(nodeName="node-1"), "use nodeSelector: kubernetes.io/hostname"),
    "kata with a claim": (claiming(runtimeClassName="microvm"), "in the sandbox kata-qemu"),
    "policy with a claim": (
        claiming(annotations={"penstock.io/policy": "smal"}), "but small; name an existing policy"
    ),
    "step": (
        asking(annotations={"penstock.io/on-exceed": "deny"}), "only a QuotaPolicy sets this",
    ),
    "grace": (asking(annotations={"penstock.io/grace": "24h"}), "only a QuotaPolicy sets this"),
}  # fmt: skip


def test_impossible_pods_and_claims_are_refused_with_what_to_write_instead(
    admission, cluster, pods
):
    runtimes = client.NodeV1Api(cluster.api)
    for name, handler in (("sandboxed", "runsc"), ("microvm", "kata-qemu")):
        runtimes.create_runtime_class({"metadata": {"name": name}, "handler": handler})
    resources = client.CustomObjectsApi(cluster.api)
    make_policy(cluster, pods, "small", {"never": "selected"})

    def make(body: dict[str, Any], plural: str = "resourceclaims") -> str:
        try:
            resources.create_namespaced_custom_object(
                "resource.k8s.io", "v1", pods.namespace, plural, body
            )
        except ApiException as error:
            return json.loads(error.body)["message"]
        return ""

    try:
        assert make(claim("good", memory="40Gi", coresPermille="300")) == ""
        said = {name: refused(pods, body) for name, (body, _) in WRONG.items()}
        assert {name: why for name, (_, why) in WRONG.items() if why not in said[name]} == {}, said
        assert not [name for name, words in said.items() if "penstock.io" not in words]
        assert "1 to 1000" in make(claim("bad", coresPermille="1500"))
        assert "it must be greater than zero" in make(claim("bad", memory="0"))
        assert "did you mean coresPermille?" in make(claim("bad", cores="30"))
        assert "did you mean mode?" in make(claim("bad", {"mod": "elastic"}, memory="1Gi"))
        template = {
            **claim("bad"), "kind": "ResourceClaimTemplate",
            "spec": {"spec": claim("bad", coresPermille="1500")["spec"]},
        }  # fmt: skip
        assert "1 to 1000" in make(template, "resourceclaimtemplates")
        # and what has nothing to do with us is not asked about
        assert refused(pods, pod("plain", scheduler="volcano")) == ""
    finally:
        for name in ("sandboxed", "microvm"):
            runtimes.delete_runtime_class(name)


def test_a_pod_before_its_claim_is_refused_and_only_the_api_server_is_answered(
    admission, cluster, pods
):
    """Claims of another driver's device class are admitted even while the webhook is down."""
    privileged = {"container": {"securityContext": {"privileged": True}}}
    assert "create the claim or the template first" in refused(
        pods, claiming("later", **privileged)
    )
    make_claims(cluster, pods, claim("later", memory="1Gi"))
    assert "is privileged" in refused(pods, claiming("later", **privileged))
    assert "the maximum is" in refused_claim(cluster, pods, claim("huge", memory="1e30"))
    cap = {
        "apiVersion": "penstock.io/v1alpha1", "kind": "QuotaCap", "metadata": {"name": "default"},
        "spec": {"hard": {"vgpus": 2}},
    }  # fmt: skip
    resources = client.CustomObjectsApi(cluster.api)
    where = ("penstock.io", "v1alpha1", pods.namespace, "quotacaps")
    resources.create_namespaced_custom_object(*where, cap)
    forged = {
        "uid": "forged", "operation": "CREATE", "resource": {"resource": "resourceclaims"},
        "namespace": pods.namespace, "userInfo": {"username": "kubernetes-admin"},
        "object": {"metadata": {"uid": "forged", "name": "x"}, **claim("x", memory="1Gi")},
    }  # fmt: skip
    body = json.dumps({"request": forged}).encode()
    for path in ("validate", "mutate", "validate/x"):
        assert admission.ask(path, body) == b"", path

    def cap_is_known() -> bool:
        every = claim("every", memory="1Gi")
        every["spec"]["devices"]["requests"][0]["exactly"]["allocationMode"] = "All"
        return "allocationMode All takes" in refused_claim(cluster, pods, every)

    until("the cap is known", cap_is_known)
    status = resources.get_namespaced_custom_object(*where, "default").get("status", {})
    assert "forged" not in status.get("pending", {})
    claims_of_another_driver_do_not_depend_on_us(admission, cluster, pods)


def claims_of_another_driver_do_not_depend_on_us(admission, cluster, pods) -> None:
    """Claims of a class that was made after ours are made even while the webhook is down."""
    theirs = {
        "metadata": {"name": "theirs"},
        "spec": {"selectors": [{"cel": {"expression": 'device.driver == "gpu.example.com"'}}]},
    }
    classes = client.ResourceV1Api(cluster.api)
    classes.create_device_class(theirs)
    try:
        hooks = client.AdmissionregistrationV1Api(cluster.api)

        def is_left_out() -> bool:
            found = hooks.read_validating_webhook_configuration("penstock").webhooks
            return any("theirs" in c.expression for h in found for c in h.match_conditions or [])

        until("their claims are not asked about", is_left_out)
        _, warnings = tried(pods, claiming("not-there"))
        assert "create such a claim before its Pod" in warnings
        admission.kill()
        other = claim("other")
        other["spec"]["devices"]["requests"][0]["exactly"] = {"deviceClassName": "theirs"}
        template = {
            **other, "kind": "ResourceClaimTemplate", "spec": {"spec": other["spec"]},
        }  # fmt: skip
        ours = claim("ours", memory="1Gi")
        until("ours is refused", lambda: refused_claim(cluster, pods, ours))
        until("theirs is made", lambda: not refused_claim(cluster, pods, other))
        until(
            "their template is made",
            lambda: not refused_claim(cluster, pods, template, "resourceclaimtemplates"),
        )
    finally:
        classes.delete_device_class("theirs")
        admission.kill()
        admission.start()


def test_while_the_webhook_is_down_only_pods_that_ask_for_shares_are_refused(
    admission, cluster, pods
):
    hooks = client.AdmissionregistrationV1Api(cluster.api)
    hook = hooks.read_validating_webhook_configuration("penstock").webhooks[0]
    path = hook.client_config.url.partition(f":{PORT}/")[2]
    for nonsense in (b"", b"[", b"[]", b'{"request": 3}', b"\xff", b'{"request": {"uid": "u"}}'):
        answer = json.loads(admission.ask(path, nonsense or b" "))["response"]
        assert answer["allowed"] is False
        assert answer["status"]["code"] == 400
    admission.kill()
    try:
        assert "failed calling webhook" in refused(pods, asking())
        assert refused(pods, pod("plain", scheduler="default-scheduler")) == ""
        # nor is what the cluster itself runs by, whatever it asks for
        system = Pods(pods.core, "kube-system")
        assert refused(system, asking()) == ""
    finally:
        admission.start()
    assert refused(pods, asking()) == ""
