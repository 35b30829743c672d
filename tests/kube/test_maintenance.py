"""Maintenance of nodes as administrators do it: a drain, and a replacement of the driver."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from functools import partial

import pytest
from kubernetes import client
from tests.kube.cluster import images
from tests.kube.support.nodes import all_nodes
from tests.kube.support.waiting import until as within

from penstock.kube.kubelet.driver_upgrade import LOOK_S
from penstock.kube.objects.names import DEVICES, DRIVER_UPGRADE, MANAGED
from penstock.kube.objects.node_devices import read_devices
from penstock_shim import paths

pytestmark = pytest.mark.kube

CLASS = "maintained.penstock.io"
SELECTOR = f"{MANAGED}=true"
until = partial(within, within_s=120)


@pytest.fixture(scope="module")
def nodes(cluster):
    """Two nodes that give shares by claims, and their device class."""
    api = client.ResourceV1Api(cluster.api)
    selector = {"cel": {"expression": 'device.driver == "penstock.io"'}}
    with contextlib.suppress(client.ApiException):  # left by a run that was killed
        api.delete_device_class(CLASS)
    api.create_device_class({"metadata": {"name": CLASS}, "spec": {"selectors": [selector]}})
    made = all_nodes(cluster)
    try:
        for node in made.values():
            node.start()
        yield made
    finally:
        for node in made.values():
            node.stop()
        api.delete_device_class(CLASS)


def kubectl(cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [cluster.layout.programs / "kubectl", *arguments],
        env={**os.environ, "KUBECONFIG": str(cluster.layout.kubeconfig)},
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip


SLOW_TO_END = "trap 'sleep 6; exit 0' TERM; echo up; while :; do sleep 0.2; done"


def deployed(pods, replicas: int) -> None:
    """A Deployment with a disruption budget; its Pods have most of a device and end slowly."""
    amounts = {"memory": "100000Mi", "coresPermille": "700"}
    request = {"deviceClassName": CLASS, "capacity": {"requests": amounts}}
    claim = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}}
    resources = client.ResourceV1Api(pods.core.api_client)
    resources.create_namespaced_resource_claim_template(
        pods.namespace, {"metadata": {"name": "most"}, "spec": claim}
    )
    labels = {"app": "kept", MANAGED: "true"}  # the latter by the webhook, which is not here
    container = {
        "name": "main",
        "image": images.DEBIAN,
        "command": ["sh", "-c", SLOW_TO_END],
        "resources": {"claims": [{"name": "gpu"}]},
    }
    spec = {
        "containers": [container],
        "terminationGracePeriodSeconds": 30,
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "most"}],
    }
    client.AppsV1Api(pods.core.api_client).create_namespaced_deployment(
        pods.namespace,
        {
            "metadata": {"name": "kept"},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": "kept"}},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        },
    )
    client.PolicyV1Api(pods.core.api_client).create_namespaced_pod_disruption_budget(
        pods.namespace,
        {
            "metadata": {"name": "kept"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
        },
    )


def where(pods) -> dict[str, str]:
    """The nodes of ready Pods that are not being deleted, by the Pods' names."""
    return {
        pod.metadata.name: pod.spec.node_name
        for pod in pods.core.list_namespaced_pod(pods.namespace).items
        if not pod.metadata.deletion_timestamp
        and any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions or ())
    }


def test_a_drain_by_our_label_respects_budgets_and_moves_pods_to_free_shares(cluster, pods, nodes):
    first, second = nodes.values()
    pods.start("bystander", "sleep", "1000", node=first.name)  # no share, no label
    pods.until_phase("bystander", "Running")
    assert kubectl(cluster, "cordon", second.name).returncode == 0
    try:
        deployed(pods, 2)
        until("both are on the first node", lambda: [*where(pods).values()].count(first.name) == 3)
        assert kubectl(cluster, "uncordon", second.name).returncode == 0
        before, fewest, held = set(first.tenants()), 2, 0
        with subprocess.Popen(
            [
                cluster.layout.programs / "kubectl", "drain", first.name, "--ignore-daemonsets",
                f"--pod-selector={SELECTOR}", "--timeout=150s",
            ],
            env={**os.environ, "KUBECONFIG": str(cluster.layout.kubeconfig)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as draining:  # fmt: skip
            while draining.poll() is None:
                fewest = min(fewest, len(where(pods).keys() - {"bystander"}))
                held = max(held, len(before & set(first.tenants())) if ending(pods) else 0)
            said = draining.stdout.read()
        assert draining.returncode == 0, said
        assert "would violate the pod's disruption budget" in said
        assert fewest >= 1
        assert held == 2, "a Pod that is told to end has its share until its container has ended"
        until("their shares are free", lambda: not before & set(first.tenants()))
        until(
            "both are on the second node",
            lambda: [n for p, n in where(pods).items() if p != "bystander"] == 2 * [second.name],
        )
        assert where(pods)["bystander"] == first.name
        assert len(second.tenants()) == 2
    finally:
        client.AppsV1Api(cluster.api).delete_namespaced_deployment("kept", pods.namespace)
        for node in nodes:
            kubectl(cluster, "uncordon", node)


def ending(pods) -> list[str]:
    """The Pods that are being deleted."""
    found = pods.core.list_namespaced_pod(pods.namespace).items
    return [pod.metadata.name for pod in found if pod.metadata.deletion_timestamp]


MACHINE = """
import sys
from pathlib import Path
from penstock_shim import simulator
simulator.create_machine(Path(sys.argv[1]), "h200,2").close()
"""


def test_the_agent_keeps_the_driver_closed_while_its_nodes_label_says_it_is_replaced(
    cluster, nodes
):
    """The agent uses NVML: the simulated library, in the place of a driver's."""
    node = nodes["node-1"]
    node.stop()
    driver = "/var/tmp/driver"
    try:
        node.call("cp", "--recursive", paths.sim_dir(), driver)
        made = node.call(sys.executable, "-c", MACHINE, f"{driver}/machine")
        assert made.returncode == 0, made.stderr
        usual = node.agent.command
        found = ("env", f"LD_LIBRARY_PATH={driver}", f"PENSTOCK_NODE_LOCK={driver}/lock")
        node.agent.command = (*found, *(w for w in usual if not w.startswith("--simulate")))
        node.start()
        upgraded(cluster, node, driver)
    finally:
        cluster.core.patch_node(node.name, {"metadata": {"labels": {DRIVER_UPGRADE: None}}})
        node.stop()
        node.call("rm", "--recursive", driver)
        node.agent.command = usual
        node.start()


def upgraded(cluster, node, driver: str) -> None:
    agent = node.agent.process()

    def held() -> list[str]:
        mapped = {one.path for one in agent.memory_maps(grouped=False)}
        opened = {one.path for one in agent.open_files()}
        return [one for one in mapped | opened if f"{driver}/lib" in one]

    def say(state: str) -> None:
        cluster.core.patch_node(node.name, {"metadata": {"labels": {DRIVER_UPGRADE: state}}})

    def healthy() -> list[bool]:
        text = cluster.core.read_node(node.name).metadata.annotations[DEVICES]
        return [one.healthy for one in read_devices(text)]

    until("it runs on them", lambda: held() and healthy() == [True, True])
    for state in ("upgrade-required", "cordon-required", "drain-required"):
        say(state)  # Pods still run, and are looked after
    time.sleep(3 * LOOK_S)
    assert held()
    say("pod-restart-required")
    until("the driver is let go of", lambda: not held())
    until("its devices are not given out", lambda: healthy() == [False, False])
    slices = client.ResourceV1Api(cluster.api).list_resource_slice().items
    tainted = [d.taints for one in slices if one.spec.node_name == node.name
               for d in one.spec.devices]  # fmt: skip
    assert all(tainted)
    node.beside.restart()  # another one knows as much
    node.until_ready()
    say("upgrade-failed")
    node.agent.restart()  # a new agent is told again only where that is right
    node.until_answers()
    say("pod-restart-required")
    agent = node.agent.process()
    until("the new agent lets go of it", lambda: not held() and healthy() == [False, False])
    done = node.call(sys.executable, "-c", UNPREPARE, "never-seen")
    assert done.stdout.strip() == "[('never-seen', '')]", done.stderr
    say("validation-required")
    until("it is taken up again", lambda: held() and healthy() == [True, True])
    assert node.agent.process() == agent, "without a restart"


UNPREPARE = """
import sys, grpc
from penstock_api.kubelet import dra_v1_pb2 as pb, dra_v1_pb2_grpc
with grpc.insecure_channel("unix:/var/lib/kubelet/plugins/penstock.io/dra.sock") as channel:
    stub = dra_v1_pb2_grpc.DRAPluginStub(channel)
    claims = [pb.Claim(namespace="nowhere", uid=uid, name="gone") for uid in sys.argv[1:]]
    asked = pb.NodeUnprepareResourcesRequest(claims=claims)
    answer = stub.NodeUnprepareResources(asked, timeout=30)
    print(sorted((uid, one.error) for uid, one in answer.claims.items()))
"""
