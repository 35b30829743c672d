"""What is refused before it is stored, and why; and the certificates that keep themselves."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
import yaml
from cryptography import x509
from kubernetes import client
from kubernetes.client import ApiException
from tests.kube import controlling
from tests.kube.cluster.layout import API_ADDRESS
from tests.kube.cluster.toolchain import PROJECT
from tests.kube.placing import GIB, Placing, devices, node, pod
from tests.kube.pods import Pods
from tests.kube.waiting import until

from penstock.kube.objects.api_client import Api
from penstock.kube.objects.names import HELD, PLACED, RESIZE
from penstock.kube.objects.placement import Share, write_placement
from penstock.kube.webhook.certificates import Certificates, Lives, utc_now
from penstock.kube.webhook.publish import CONFIGURATIONS, Places, Publisher

pytestmark = pytest.mark.kube

NAMESPACE = "penstock"
PORT = 9443
KINDS = {
    "MutatingWebhookConfiguration": "mutating_webhook_configuration",
    "ValidatingWebhookConfiguration": "validating_webhook_configuration",
}
CLASS = {
    "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "slices"},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver == "penstock.io"'}}]},
}  # fmt: skip


def configurations() -> list[dict[str, Any]]:
    """The chart's own; here the server is no Service, and the scheduler another user."""
    text = (PROJECT / "deploy" / "kube" / "webhooks.yaml").read_text()
    found = list(
        yaml.safe_load_all(
            text.replace("system:serviceaccount:penstock:penstock-place", "system:kube-scheduler")
        )
    )
    for hook in (hook for one in found for hook in one["webhooks"]):
        hook["clientConfig"] = {"url": f"https://{API_ADDRESS}:{PORT}/"}
    return found


class Webhook:
    """`penstock kube admit` beside the API server."""

    def __init__(self, cluster, folder):
        self.cluster = cluster
        self.log_file = folder / "admit.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        keeper = self.cluster.process("keeper").pid
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    "setpriv", "--pdeathsig", "KILL", "nsenter", f"--net=/proc/{keeper}/ns/net",
                    sys.executable, "-m", "penstock", "kube", "admit",
                    f"--kubeconfig={self.cluster.layout.secrets}/admin.kubeconfig",
                    f"--listen={API_ADDRESS}:{PORT}", f"--name={API_ADDRESS}",
                    "--scheduler-user=system:kube-scheduler", *options,
                ],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        until("it is ready", lambda: self.ask("readyz"))

    def ask(self, path: str, body: bytes = b"") -> bytes:
        keeper = self.cluster.process("keeper").pid
        return subprocess.run(
            ["nsenter", f"--net=/proc/{keeper}/ns/net", "curl", "--silent", "--insecure", "--fail",
             *(["--data-binary", "@-"] if body else []), f"https://{API_ADDRESS}:{PORT}/{path}"],
            input=body, capture_output=True, check=False,
        ).stdout  # fmt: skip

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def admission(cluster, tmp_path_factory):
    hooks = client.AdmissionregistrationV1Api(cluster.api)
    cluster.core.create_namespace({"metadata": {"name": NAMESPACE}})
    for one in configurations():
        getattr(hooks, f"create_{KINDS[one['kind']]}")(one)
    resources = client.CustomObjectsApi(cluster.api)
    resources.create_cluster_custom_object("resource.k8s.io", "v1", "deviceclasses", CLASS)
    controlling.define(cluster)
    webhook = Webhook(cluster, tmp_path_factory.mktemp("admit"))
    try:
        webhook.start()
        yield webhook
    finally:
        if webhook.process:
            webhook.kill()
        for kind in KINDS.values():
            getattr(hooks, f"delete_{kind}")("penstock")
        resources.delete_cluster_custom_object("resource.k8s.io", "v1", "deviceclasses", "slices")
        cluster.core.delete_namespace(NAMESPACE)
        controlling.undefine(cluster)


def refused(pods, body: dict[str, Any]) -> str:
    """The words with which a Pod is refused; it is not made in any case."""
    try:
        pods.core.create_namespaced_pod(pods.namespace, body, dry_run="All")
    except ApiException as error:
        return json.loads(error.body)["message"]
    return ""


def asking(limits: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    body = pod("wrong", scheduler="default-scheduler")
    container = body["spec"]["containers"][0]
    container["resources"] = {"limits": limits or {"penstock.io/memory": "1Gi"}}
    container.update(spec.pop("container", {}))
    body["metadata"]["annotations"] = spec.pop("annotations", {})
    body["spec"].update(spec)
    return body


def claiming(claim: str = "good", **spec: Any) -> dict[str, Any]:
    """The same by a claim."""
    body = asking(**spec)
    body["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
    body["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return body


WRONG = {
    "cores 150": (asking({"penstock.io/cores": "150"}), "did you mean penstock.io/cores-permille?"),
    "cores 1500": (
        asking({"penstock.io/cores-permille": "1500"}),
        "at most 1000 permille: a whole device",
    ),
    "zero": (asking({"penstock.io/memory": "0"}), "that is nothing"),
    "no count": (asking({"penstock.io/vgpu": "0"}), "that is nothing"),
    "a fraction": (asking({"penstock.io/cores-permille": "12500m"}), "counted in whole numbers"),
    "no unit": (asking({"penstock.io/memory": "40"}), "such as 40Gi"),
    "misspelt": (asking({"penstock.io/memmory": "1Gi"}), "did you mean penstock.io/memory?"),
    "both": (
        asking({"penstock.io/cores-permille": "100", "penstock.io/tflops": "10"}),
        "both say how much compute",
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
    "gvisor": (asking(runtimeClassName="sandboxed"), "runs containers by runsc"),
    "policy": (
        asking(annotations={"penstock.io/policy": "smal"}),
        "has no such QuotaPolicy, but small; name one that is there",
    ),
    "mode": (asking(annotations={"penstock.io/mode": "loose"}), "strict or elastic"),
    "resize": (
        asking(annotations={RESIZE: '{"main": {"memory": "2Gi"}}'}),
        "write the quantities under limits",
    ),
    "placed": (
        asking(annotations={PLACED: write_placement({"main": {"GPU-x": Share(GIB, 1)}})}),
        "only the scheduler says which devices a Pod has",
    ),
    "both ways": (
        asking(resourceClaims=[{"name": "gpu", "resourceClaimName": "good"}]),
        "they are two ways to one thing",
    ),
    "privileged with a claim": (
        claiming(container={"securityContext": {"privileged": True}}), "is privileged",
    ),
    "node with a claim": (claiming(nodeName="node-1"), "use nodeSelector: kubernetes.io/hostname"),
    "kata with a claim": (claiming(runtimeClassName="microvm"), "runs containers by kata-qemu"),
    "policy with a claim": (
        claiming(annotations={"penstock.io/policy": "smal"}), "but small; name one that is there"
    ),
    "step": (
        asking(annotations={"penstock.io/on-exceed": "deny"}), "is a QuotaPolicy's to say",
    ),
    "grace": (asking(annotations={"penstock.io/grace": "24h"}), "is a QuotaPolicy's to say"),
}  # fmt: skip


def claim(name: str, config: dict[str, Any] | None = None, **requests: str) -> dict[str, Any]:
    exactly = {"deviceClassName": "slices", "capacity": {"requests": requests}}
    devices: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if config is not None:
        head = {"apiVersion": "penstock.io/v1alpha1", "kind": "VgpuParameters"}
        opaque = {"driver": "penstock.io", "parameters": {**head, **config}}
        devices["config"] = [{"opaque": opaque}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": devices},
    }


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
        assert "that is nothing" in make(claim("bad", memory="0"))
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


def make_policy(
    cluster, pods, name: str, labels: dict[str, str] | None = None, **spec: Any
) -> None:
    limits = {"limits": {"memory": "8Gi", "cores": 30}}
    selector = {"selector": {"matchLabels": labels}} if labels else {}
    client.CustomObjectsApi(cluster.api).create_namespaced_custom_object(
        "penstock.io", "v1alpha1", pods.namespace, "quotapolicies",
        {
            "apiVersion": "penstock.io/v1alpha1", "kind": "QuotaPolicy",
            "metadata": {"name": name}, "spec": {**limits, **selector, **spec},
        },
    )  # fmt: skip


def warned(make, *arguments: Any, **more: Any) -> tuple[Any, str]:
    """What a request makes, and the warnings that came with it."""
    made, _, headers = make(*arguments, **more)
    return made, headers.get("Warning", "")


PROBE = {"exec": {"command": ["true"]}}


def tried(pods, body: dict[str, Any]) -> tuple[Any, str]:
    """The Pod that it would become, and warnings."""
    make = pods.core.create_namespaced_pod_with_http_info
    return warned(make, pods.namespace, body, dry_run="All")


def make_claims(cluster, pods, *bodies: dict[str, Any]) -> None:
    resources = client.CustomObjectsApi(cluster.api)
    for body in bodies:
        resources.create_namespaced_custom_object(
            "resource.k8s.io", "v1", pods.namespace, "resourceclaims", body
        )


def patient_policy(cluster, pods) -> None:
    """One that suspends."""
    make_policy(
        cluster, pods, "patient", {"app": "patient"},
        onExceed={"measured": "suspend", "grace": "20s"},
    )  # fmt: skip


def test_a_policy_bounds_and_completes_shares_by_resources_and_bounds_claims(
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
        f"QuotaPolicy {where}/usual allows at most 8Gi of each device; ask for 8Gi or less" in said
    )
    assert "at most 300 of each device" in said
    assert "bounds penstock.io/cores-permille" in refused(pods, asking({"penstock.io/tflops": "1"}))
    said = refused(pods, claiming("large"))
    assert "claim gpu, request gpu, asks for memory: 9Gi" in said
    assert "asks for coresPermille: 301" in said
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
    assert "says no memory: it gets an eighth of the device" in warnings
    assert [one.condition_type for one in made.spec.readiness_gates] == ["penstock.io/running"]
    assert refused(pods, claiming("good")) == ""
    lifted = asking(annotations={"penstock.io/on-exceed": "deny"})
    assert f"QuotaPolicy {where}/usual says terminate" in refused(pods, lifted)

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


def test_what_would_end_a_suspended_pod_is_warned_of_and_so_is_who_writes_what_makes_it(
    admission, cluster, pods
):
    """Only where enforcement suspends; nothing is refused for it."""
    where = pods.namespace
    patient_policy(cluster, pods)
    make_policy(cluster, pods, "usual")
    make_claims(cluster, pods, claim("stops", {"onExceed": {"measured": "suspend"}}, memory="1Gi"))
    deadly = {"container": {"livenessProbe": PROBE, "startupProbe": PROBE}}
    _, warnings = tried(
        pods, asking({"penstock.io/memory": "1Gi"}, activeDeadlineSeconds=60, **deadly)
    )
    assert "suspended" not in warnings
    patient = asking({"penstock.io/memory": "1Gi"}, activeDeadlineSeconds=60, **deadly)
    patient["metadata"]["labels"] = {"app": "patient"}
    made, warnings = tried(pods, patient)
    assert made.metadata.annotations["penstock.io/on-exceed"] == "suspend"
    assert made.metadata.annotations["penstock.io/grace"] == "20s"
    for word in (
        "has a livenessProbe",
        "has a startupProbe",
        "activeDeadlineSeconds of the Pod (60)",
    ):
        assert word in warnings
    assert "usual allows terminate or stricter" in refused(pods, claiming("stops"))
    stops = claiming("stops", activeDeadlineSeconds=61)
    stops["metadata"]["labels"] = {"app": "patient"}
    _, warnings = tried(pods, stops)
    assert "activeDeadlineSeconds of the Pod (61)" in warnings
    template = {"metadata": {"labels": {"app": "patient"}}, "spec": patient["spec"]}
    template["spec"] |= {"restartPolicy": "Never"}
    jobs = client.BatchV1Api(cluster.api)
    job = {
        "metadata": {"name": "deadly"},
        "spec": {"template": template, "activeDeadlineSeconds": 77},
    }
    for body, make in (
        (job, jobs.create_namespaced_job_with_http_info),
        (
            {
                "metadata": {"name": "deadly"},
                "spec": {"schedule": "0 0 * * *", "jobTemplate": {"spec": job["spec"]}},
            },
            jobs.create_namespaced_cron_job_with_http_info,
        ),
    ):
        _, warnings = warned(make, where, body, dry_run="All")
        assert "activeDeadlineSeconds of Job (77)" in warnings
        assert "has a livenessProbe" in warnings
    wrong = asking(
        {"penstock.io/memory": "9Gi"}, container={"securityContext": {"privileged": True}}
    )
    deployment = {
        "metadata": {"name": "wrong"},
        "spec": {
            "replicas": 0, "selector": {"matchLabels": {"app": "x"}},
            "template": {"metadata": {"labels": {"app": "x"}}, "spec": wrong["spec"]},
        },
    }  # fmt: skip
    apps = client.AppsV1Api(cluster.api)
    _, warnings = warned(apps.create_namespaced_deployment_with_http_info, where, deployment)
    assert "its Pods will be refused: container main is privileged" in warnings
    assert "its Pods will be refused: container main asks for penstock.io/memory: 9Gi" in warnings
    _, warnings = warned(
        apps.patch_namespaced_deployment_with_http_info, "wrong", where, {"spec": {"paused": True}}
    )
    assert not warnings


def test_a_good_pod_is_completed_and_warned_of_what_no_device_here_has(
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
            with pytest.raises(ApiException, match="its QuotaPolicy as of the Pod's creation"):
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
        with pytest.raises(ApiException, match="a Binding with"):
            pods.core.create_namespaced_pod_binding(
                "other", pods.namespace, forged, _preload_content=False
            )
    finally:
        placing.stop()
        pods.core.delete_collection_namespaced_pod(pods.namespace, grace_period_seconds=0)
        cluster.core.delete_node("fitting")


def test_a_pod_before_its_claim_and_who_is_not_the_api_server_get_nowhere(admission, cluster, pods):
    """Nor does a device class of another driver make a claim that depends on us."""
    privileged = {"container": {"securityContext": {"privileged": True}}}
    assert "make the claim or the template first" in refused(pods, claiming("later", **privileged))
    make_claims(cluster, pods, claim("later", memory="1Gi"))
    assert "is privileged" in refused(pods, claiming("later", **privileged))
    assert "memory is at most" in refused_claim(cluster, pods, claim("huge", memory="1e30"))
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
        assert "make such a claim before its Pod" in warnings
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


def refused_claim(cluster, pods, body: dict[str, Any], plural: str = "resourceclaims") -> str:
    """The words with which a claim is refused; it is not made in any case."""
    try:
        client.CustomObjectsApi(cluster.api).create_namespaced_custom_object(
            "resource.k8s.io", "v1", pods.namespace, plural, body, dry_run="All"
        )
    except ApiException as error:
        return json.loads(error.body)["message"]
    return ""


def test_while_nobody_answers_only_pods_that_ask_for_shares_wait(admission, cluster, pods):
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


def annotate(pods, name: str, key: str, text: str) -> None:
    pods.core.patch_namespaced_pod(name, pods.namespace, {"metadata": {"annotations": {key: text}}})


def trusts(bundle: bytes, server: bytes) -> bool:
    leaf = x509.load_pem_x509_certificate(server)
    for authority in x509.load_pem_x509_certificates(bundle):
        if authority.subject == leaf.issuer:
            leaf.verify_directly_issued_by(authority)
            return True
    return False


def test_certificates_are_renewed_by_several_replicas_and_trusted_all_the_while(
    admission, cluster, pods
):
    """Lives of seconds: each look of either replica has something to do."""
    lives = Lives(authority=timedelta(seconds=12), server=timedelta(seconds=6))
    places = Places(NAMESPACE, "short", "penstock-short", ("a.b.svc", API_ADDRESS))
    hooks = client.AdmissionregistrationV1Api(cluster.api)
    for one in configurations():
        one["metadata"]["name"] = "penstock-short"
        one["webhooks"] = [{
            "name": "nothing.penstock.io", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://127.0.0.1:9/"}, "failurePolicy": "Ignore",
        }]  # fmt: skip
        getattr(hooks, f"create_{KINDS[one['kind']]}")(one)
    shown: list[Certificates] = []

    async def bundles(api: Api) -> list[bytes]:
        found = [await api.get(kind, "penstock-short") for kind in CONFIGURATIONS]
        return [base64.b64decode(one["webhooks"][0]["clientConfig"]["caBundle"]) for one in found]

    def publisher(api: Api) -> Publisher:
        return Publisher(api, places, shown.append, lambda *_, **__: None, lives=lives, look_s=0.5)

    async def work() -> None:
        async with await Api.connect(cluster.layout.kubeconfig) as api:
            replicas = [asyncio.create_task(publisher(api).run()) for _ in range(2)]
            end = asyncio.get_running_loop().time() + 60
            while len({one.trusted for one in shown}) < 4:
                assert asyncio.get_running_loop().time() < end
                await asyncio.sleep(0.2)
                for before in shown[-1:]:
                    found = await bundles(api)
                    assert all(trusts(one, before.server) for one in found)
            for one in replicas:
                one.cancel()
            await asyncio.gather(*replicas, return_exceptions=True)

    try:
        asyncio.run(work())
    finally:
        for kind in KINDS.values():
            getattr(hooks, f"delete_{kind}")("penstock-short")
    assert len({one.server for one in shown}) >= 3
    made = Certificates.make(["x"], lives, utc_now())
    first = x509.load_pem_x509_certificate(made.server)
    assert utc_now() - first.not_valid_before_utc > timedelta(minutes=4)
