"""Certificates of the webhook, which it renews."""

from __future__ import annotations

import asyncio
import base64
from datetime import timedelta

import pytest
from cryptography import x509
from kubernetes import client
from tests.kube.cluster.layout import API_ADDRESS
from tests.kube.support.admission import (
    KINDS,
    NAMESPACE,
    configurations,
)

from penstock.kube.objects.api_client import Api
from penstock.kube.webhook.certificates import Certificates, Lives, utc_now
from penstock.kube.webhook.publish import CONFIGURATIONS, Places, Publisher

pytestmark = pytest.mark.kube


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
    """Certificates live for seconds, so that each replica renews one at each of its looks."""
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
