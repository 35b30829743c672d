"""`penstock kube admit` beside the API server."""

from __future__ import annotations

import pytest
from kubernetes import client
from tests.kube.support import controlling
from tests.kube.support.admission import CLASS, KINDS, NAMESPACE, Webhook, configurations


@pytest.fixture(scope="package")
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
