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
from tests.kube.cluster.layout import API_ADDRESS
from tests.kube.cluster.toolchain import PROJECT
from tests.kube.placing import GIB, Placing, devices, node, pod
from tests.kube.waiting import until

from penstock.kube.admit.certificates import Certificates, Lives, utc_now
from penstock.kube.admit.publish import CONFIGURATIONS, Places, Publisher
from penstock.kube.api import Api
from penstock.kube.names import HELD, PLACED, RESIZE
from penstock.kube.placed import Share, write_placement

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
        path = hook["clientConfig"]["service"]["path"]
        hook["clientConfig"] = {"url": f"https://{API_ADDRESS}:{PORT}{path}"}
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
    "policy": (asking(annotations={"penstock.io/policy": "smal"}), "no QuotaPolic"),
    "mode": (asking(annotations={"penstock.io/mode": "loose"}), "strict or elastic"),
    "resize": (
        asking(annotations={RESIZE: '{"main": {"memory": "2Gi"}}'}),
        "write the amounts under limits",
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
        {
            "metadata": {"name": "wrong"},
            "spec": {
                "resourceClaims": [{"name": "gpu", "resourceClaimName": "good"}],
                "containers": [{
                    "name": "main", "image": "x", "securityContext": {"privileged": True},
                }],
            },
        },
        "is privileged",
    ),
}  # fmt: skip


def claim(name: str, **requests: str) -> dict[str, Any]:
    exactly = {"deviceClassName": "slices", "capacity": {"requests": requests}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def test_impossible_pods_and_claims_are_refused_with_what_to_write_instead(
    admission, cluster, pods
):
    runtimes = client.NodeV1Api(cluster.api)
    runtimes.create_runtime_class({"metadata": {"name": "sandboxed"}, "handler": "runsc"})
    resources = client.CustomObjectsApi(cluster.api)

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
        template = {
            **claim("bad"), "kind": "ResourceClaimTemplate",
            "spec": {"spec": claim("bad", coresPermille="1500")["spec"]},
        }  # fmt: skip
        assert "1 to 1000" in make(template, "resourceclaimtemplates")
        # and what has nothing to do with us is not asked about
        assert refused(pods, pod("plain", scheduler="volcano")) == ""
    finally:
        runtimes.delete_runtime_class("sandboxed")


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


def test_while_nobody_answers_only_pods_that_ask_for_shares_wait(admission, pods):
    for nonsense in (b"", b"[", b"[]", b'{"request": 3}', b"\xff", b'{"request": {"uid": "u"}}'):
        answer = json.loads(admission.ask("validate", nonsense or b" "))["response"]
        assert answer["allowed"] is False
        assert answer["status"]["code"] == 400
    admission.kill()
    try:
        assert "failed calling webhook" in refused(pods, asking())
        assert refused(pods, pod("plain", scheduler="default-scheduler")) == ""
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
