"""Policies, caps and leader election on a real cluster."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import itertools
import secrets
import subprocess
import sys
import time

import pytest
from kubernetes import client
from tests.kube.cluster.layout import API_ADDRESS
from tests.kube.support import controlling
from tests.kube.support.controlling import GROUP, NAMESPACE, VERSION
from tests.kube.support.waiting import until

from penstock.kube.controller.leader_election import Leader, NotLeadingError
from penstock.kube.objects.api_client import Api

pytestmark = pytest.mark.kube


def test_a_policy_says_whether_it_holds_and_for_which_pods(cluster, pods, things):
    things.policy("ranker", selector={"matchLabels": {"app": "ranker"}})
    for number in range(7):
        pods.start(f"ranker-{number}", "sleep", "1000", labels={"app": "ranker"})
    pods.start("other", "sleep", "1000", labels={"app": "other"})
    until("it counts seven", lambda: things.condition("ranker")[1] == "applies to 7 Pods")
    status = things.status("ranker")
    assert status["pods"] == {"count": 7, "names": [f"ranker-{number}" for number in range(5)]}
    assert status["observedGeneration"] == 1

    # A second that takes in some of the same Pods: both say it, and with which example.
    things.policy("all", selector={"matchLabels": {"tier": "gold"}})
    until("the second is in force", lambda: things.condition("all")[0] == "InForce")
    label = {"metadata": {"labels": {"tier": "gold"}}}
    cluster.core.patch_namespaced_pod("ranker-3", pods.namespace, label)
    until("the first says so", lambda: things.condition("ranker")[0] == "Conflict")
    until("the second says so", lambda: things.condition("all")[0] == "Conflict")
    assert "all (Pod ranker-3)" in things.condition("ranker")[1]
    assert "ranker (Pod ranker-3)" in things.condition("all")[1]
    assert things.status("ranker")["pods"]["count"] == 6, "neither holds for that Pod"

    things.custom.delete_namespaced_custom_object(
        GROUP, VERSION, pods.namespace, "quotapolicies", "all"
    )
    until("it holds again", lambda: things.condition("ranker")[0] == "InForce")
    assert things.status("ranker")["pods"]["count"] == 7

    # Two defaults exclude each other before there is any Pod.
    things.policy("default-1")
    things.policy("default-2")
    until("both say so", lambda: things.condition("default-1")[0] == "Conflict")
    assert "every Pod that it selects" in things.condition("default-1")[1]


def test_an_invalid_policy_is_refused_with_the_reason(things):
    def refused(**spec):
        with pytest.raises(client.ApiException) as error:
            things.policy("wrong", **spec)
        assert error.value.status == 422
        return error.value.body

    thresholds = {"cpu": {"up": 80, "down": 40}}
    assert "priorityClassName" in refused(priority=3)
    assert "plain machines" in refused(selector={"command": "python*"})
    assert "leave the selector out" in refused(selector={})
    assert "keep only one of them" in refused(limits={"memory": "1Gi", "cores": 3, "tflops": 4})
    assert "up must be above down" in refused(
        scale={"max": 3, "metrics": {"cpu": {"up": 40, "down": 40}}}
    )
    assert "min must be at most max" in refused(scale={"min": 4, "max": 3, "metrics": thresholds})
    assert "at least one of" in refused(scale={"max": 3, "metrics": {}})
    assert "cores" in refused(limits={"cores": 101})
    # What the schema cannot say, the status does: the way to write it is right, the amount not.
    things.policy("doubtful", limits={"memory": "1Gi", "cores": "150"})
    until("it says so", lambda: things.condition("doubtful")[0] == "Invalid")
    assert "spec.limits.cores" in things.condition("doubtful")[1]
    assert "more than a whole device" in things.condition("doubtful")[1]


@pytest.fixture
def webhook(cluster, tmp_path, controllers):
    """Two processes that admit claims, as two replicas do, each on a port of its own."""
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-keyout", key, "-out", certificate, "-subj", "/CN=caps",
            "-addext", f"subjectAltName=IP:{API_ADDRESS}", "-days", "2",
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    config = controlling.kubeconfig(cluster, tmp_path)
    processes = [
        subprocess.Popen(
            [
                *controlling.netns(cluster), sys.executable, "-m", "tests.kube.support.cap_webhook",
                config, certificate, key, str(port),
            ],
            stdout=subprocess.PIPE, cwd=controlling.PROJECT,
        )
        for port in (9601, 9602)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout.readline() == b"ready\n"
    yield certificate.read_bytes(), (9601, 9602)
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def _register(cluster, namespace, webhook, name):
    """Registers both processes as a webhook for the namespace.

    Objects with the label `half: 0` go to the first process, with `half: 1` to the second.
    """
    certificate, ports = webhook
    registration = client.AdmissionregistrationV1Api(cluster.api)
    registration.create_validating_webhook_configuration(
        {
            "metadata": {"name": name},
            "webhooks": [
                {
                    "name": f"half-{half}.caps.penstock.io",
                    "clientConfig": {
                        "url": f"https://{API_ADDRESS}:{port}/",
                        "caBundle": base64.b64encode(certificate).decode(),
                    },
                    "rules": [
                        {
                            "operations": ["CREATE"],
                            "apiGroups": ["resource.k8s.io", ""],
                            "apiVersions": ["*"],
                            "resources": ["resourceclaims", "pods"],
                        }
                    ],
                    "namespaceSelector": {
                        "matchLabels": {"kubernetes.io/metadata.name": namespace}
                    },
                    "objectSelector": {"matchLabels": {"half": str(half)}},
                    "sideEffects": "NoneOnDryRun",
                    "admissionReviewVersions": ["v1"],
                    "failurePolicy": "Fail",
                }
                for half, port in enumerate(ports)
            ],
        }
    )
    return lambda: registration.delete_validating_webhook_configuration(name)


@pytest.fixture
def anybodys_class(things):
    """A DeviceClass that names no driver."""
    things.resources.create_device_class({"metadata": {"name": "anything"}, "spec": {}})
    yield "anything"
    things.resources.delete_device_class("anything")


def ask_class(claim: dict, name: str) -> None:
    (request,) = claim["spec"]["devices"]["requests"]
    request["exactly"]["deviceClassName"] = name


def make_cap(things, namespace: str) -> None:
    things.custom.create_namespaced_custom_object(
        GROUP, VERSION, namespace, "quotacaps",
        {
            "apiVersion": f"{GROUP}/{VERSION}", "kind": "QuotaCap",
            "metadata": {"name": "default"},
            "spec": {"hard": {"memory": "100Gi", "cores": 2000}},
        },
    )  # fmt: skip


def make_pod(core, namespace: str, number: int, labels: dict[str, str]) -> None:
    limits = {"penstock.io/memory": "8Gi", "penstock.io/cores-permille": "100"}
    container = {
        "name": "main", "image": "penstock.test/debian:1",
        "resources": {"limits": limits},
    }  # fmt: skip
    core.create_namespaced_pod(
        namespace,
        {
            "metadata": {"name": f"one-{number}", "labels": labels},
            "spec": {"containers": [container], "schedulerName": "nobody"},
        },
        _request_timeout=30,
    )


def make_claim(things, namespace: str, number: int, labels: dict[str, str], of: str) -> None:
    """Makes a claim; each third one names the device class `of`."""
    claim = things.claim(f"one-{number}", cores=100)
    claim["metadata"]["labels"] = labels
    ask_class(claim, GROUP if number % 3 else of)
    things.resources.create_namespaced_resource_claim(namespace, claim, _request_timeout=30)


def delete_one(core, things, namespace: str, number: int) -> None:
    if number % 5 == 0:
        core.delete_namespaced_pod(f"one-{number}", namespace, grace_period_seconds=0)
    else:
        things.resources.delete_namespaced_resource_claim(f"one-{number}", namespace)


def test_fifty_claims_and_pods_at_once_never_exceed_the_cap(
    cluster, pods, things, webhook, anybodys_class
):
    """A cap of 100Gi has room for twelve of 8Gi each. Two processes admit them at once.

    Some claims name a class without a driver, whose devices may be of any.
    """
    controlling.device_class(cluster)
    make_cap(things, pods.namespace)
    unregister = _register(cluster, pods.namespace, webhook, pods.namespace)

    def ledger():
        return things.custom.get_namespaced_custom_object(
            GROUP, VERSION, pods.namespace, "quotacaps", "default"
        ).get("status", {})

    def make(number: int) -> str:
        labels = {"half": str(number % 2)}
        try:
            if number % 5 == 0:
                make_pod(cluster.core, pods.namespace, number, labels)
            else:
                make_claim(things, pods.namespace, number, labels, anybodys_class)
        except client.ApiException as error:
            return error.body
        return ""

    try:
        with concurrent.futures.ThreadPoolExecutor(50) as pool:
            answers = list(pool.map(make, range(50)))
        made = [number for number, answer in enumerate(answers) if not answer]
        assert len(made) == 12, answers
        refusals = {answer for answer in answers if answer}
        # None for being late: an API server waits ten seconds for a webhook.
        assert all("QuotaCap" in one and "of 100Gi taken" in one for one in refusals), refusals

        # What people read is what refusals go by, from the first moment.
        assert ledger()["usedInWords"] == {"vgpus": "12", "memory": "96Gi", "cores": "120%"}
        until("the controller has counted", lambda: ledger()["used"]["vgpus"] == 12)
        until("nothing is pending", lambda: not ledger().get("pending"))
        assert ledger()["used"]["memoryBytes"] == 12 * 8 << 30
        assert ledger()["usedInWords"]["memory"] == "96Gi"
        assert "QuotaCap" in make(50)
        # Whoever goes makes room, once the controller has seen it.
        for number in made[:2]:
            delete_one(cluster.core, things, pods.namespace, number)
        until("two are free", lambda: ledger()["used"]["vgpus"] == 10)
        assert make(51) == ""
        assert make(52) == ""
        assert "QuotaCap" in make(53)
        unsaid = things.claim("unsaid")
        unsaid["metadata"]["labels"] = {"half": "0"}
        del unsaid["spec"]["devices"]["requests"][0]["exactly"]["capacity"]
        with pytest.raises(client.ApiException, match="must state an amount"):
            things.resources.create_namespaced_resource_claim(pods.namespace, unsaid)
    finally:
        unregister()
        controlling.no_device_class(cluster)


def candidate(connection, lease: str, name: str, spans: list[tuple[str, float, float]]):
    """A candidate that acts while it leads; of each term it adds begin and last act to `spans`."""
    leader = Leader(connection, NAMESPACE, lease, name, duration_s=4, deadline_s=2.5, retry_s=0.3)

    async def act():
        began = last = time.monotonic()
        try:
            while True:
                await asyncio.sleep(0.01)
                leader.check()
                last = time.monotonic()
        except NotLeadingError:
            await asyncio.sleep(3600)
        finally:
            spans.append((name, began, last))

    return leader, asyncio.create_task(leader.run(act))


async def until_leads(leader, *others):
    while not leader.leads:
        await asyncio.sleep(0.01)
    assert not [one for one in others if one.leads]


def test_a_leader_that_is_cut_off_stops_before_another_begins(cluster):
    """Of two candidates the leader loses its connection to the API server."""
    config = cluster.layout.kubeconfig
    lease = f"race-{secrets.token_hex(4)}"

    async def work():
        async with await Api.connect(config) as api, await Api.connect(config) as cut:
            spans: list[tuple[str, float, float]] = []

            one, of_one = candidate(cut, lease, "one", spans)
            await until_leads(one)
            two, of_two = candidate(api, lease, "two", spans)
            await asyncio.sleep(1)
            assert not two.leads
            renewals = cut._ask

            async def nothing(*_, **__):
                await asyncio.sleep(3600)  # a connection that hangs: the worst of failures

            cut._ask = nothing
            await until_leads(two, one)
            cut._ask = renewals
            await asyncio.sleep(1)
            assert two.leads
            assert not one.leads
            of_two.cancel()  # gives the lease back: the other need not wait for its end
            await asyncio.gather(of_two, return_exceptions=True)
            freed = time.monotonic()
            await until_leads(one, two)
            assert time.monotonic() - freed < 3
            of_one.cancel()
            await asyncio.gather(of_one, return_exceptions=True)
            spans.sort(key=lambda span: span[1])
            assert [name for name, _, _ in spans] == ["one", "two", "one"]
            for (_, _, ended), (_, began, _) in itertools.pairwise(spans):
                assert ended < began, "never two at once"

    asyncio.run(asyncio.wait_for(work(), 60))
