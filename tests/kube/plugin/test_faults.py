"""Shares while the API server, the kubelet, the plugin and the agent are away."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest
from tests.kube.support.plugin_pods import (
    LOOK,
    MIB,
    check,
    container,
    devices,
    nothing_left,
    place,
    pod,
    slots,
    until_said,
)
from tests.kube.support.waiting import until

from penstock.kube.kubelet.reconciler import UNWANTED_S
from penstock.model.share import Share

pytestmark = pytest.mark.kube


def granted(node, name: str) -> list[dict[str, Any]]:
    """The plugin's log lines of a Pod's shares, one for each start of a container."""
    return [one for one in node.beside.events("granted") if one["pod"] == name]


def restarts_without_api_server(cluster, pods, node) -> None:
    """The container of `restarts` gets its share again from a new plugin, which knows no Pods."""
    api_server = cluster.process("kube-apiserver")
    api_server.suspend()
    try:
        times = len(node.beside.events("registered"))
        node.beside.restart(signal.SIGKILL)
        # Sooner, and the kubelet would ask nobody, and again only after ten seconds or more.
        until("the plugin is there again", lambda: len(node.beside.events("registered")) > times)
        begun = len(granted(node, "restarts"))
        node.call("pkill", "-f", "^sleep 4242")
        until("the container starts again", lambda: len(granted(node, "restarts")) > begun)
        assert len(node.tenants()) == 3
    finally:
        api_server.resume()
    until(
        "it has restarted", lambda: pods.read("restarts").status.container_statuses[0].restart_count
    )


def test_containers_restart_and_pods_end_while_api_server_kubelet_plugin_or_agent_is_away(
    cluster, pods, plugin_nodes, tmp_path
):
    node = plugin_nodes["node-1"]
    one, other = devices(cluster, node.name)
    shares = {
        "restarts": {one: Share(2048 * MIB, 100)},
        "runs-on": {other: Share(3072 * MIB, 110)},
        "forced": {one: Share(4096 * MIB, 120)},
        "finishes": {other: Share(5120 * MIB, 130)},
    }
    again = ("sh", "-c", f"python3 {LOOK[1]}; sleep 4242")
    place(pods, pod("restarts", container("main", *again), restartPolicy="Always"), node.name, {
        "main": shares["restarts"]
    })  # fmt: skip
    for name in ("runs-on", "forced"):
        place(pods, pod(name, container("main", *LOOK, "stay")), node.name, {"main": shares[name]})
    place(pods, pod("finishes", container("main", *LOOK)), node.name, {"main": shares["finishes"]})
    for name in ("restarts", "runs-on", "forced"):
        check(until_said(pods, name), tmp_path, shares[name])
    pods.until_phase("finishes", "Succeeded")
    check(until_said(pods, "finishes"), tmp_path, shares["finishes"])
    until("what has finished is released", lambda: len(node.tenants()) == 3)

    restarts_without_api_server(cluster, pods, node)
    check(until_said(pods, "restarts"), tmp_path, shares["restarts"])

    # Deleted by force, while no kubelet is there to end it: its share is not free yet.
    kubelet = cluster.process(f"{node.name}-kubelet")
    kubelet.suspend()
    pods.core.delete_namespaced_pod("forced", pods.namespace, grace_period_seconds=0)
    node.agent.restart(signal.SIGKILL)
    node.until_answers()
    time.sleep(3 * UNWANTED_S)
    assert len(node.tenants()) == 3
    kubelet.kill()
    until("it is released", lambda: len(node.tenants()) == 2, within_s=120)
    node.until_ready()
    until("slots are told again", lambda: slots(cluster, node.name) > 0)
    place(pods, pod("new", container("main", *LOOK, "stay")), node.name, {"main": shares["forced"]})
    check(until_said(pods, "new"), tmp_path, shares["forced"])
    assert pods.read("runs-on").status.container_statuses[0].restart_count == 0
    pods.core.delete_collection_namespaced_pod(pods.namespace)
    nothing_left({node.name: node})
