"""Nodes that give shares by extended resources."""

from __future__ import annotations

import pytest
from tests.kube.support.nodes import all_nodes
from tests.kube.support.plugin_pods import slots
from tests.kube.support.waiting import until


@pytest.fixture(scope="package")
def served(cluster):
    """Agents with two simulated H200 each, served by the device plugin."""
    nodes = all_nodes(cluster, way="plugin")
    try:
        for node in nodes.values():
            node.start()
        yield nodes
    finally:
        for node in nodes.values():
            node.stop()


@pytest.fixture
def plugin_nodes(cluster, served):
    """The nodes of `served`, ready: a kubelet refuses Pods for good while its plugin is away."""
    for node in served.values():
        node.until_ready()
        until(f"{node.name} has slots", lambda n=node.name: slots(cluster, n) > 0)
    return served
