"""The end of the installed chart, and so the last file here."""

from __future__ import annotations

import concurrent.futures
import functools

import pytest
from tests.kube.cluster import layout
from tests.kube.support.chart import (
    BY_PLUGIN,
    NAMESPACE,
    RELEASE,
    HelmError,
    traces,
)
from tests.kube.support.nodes import forget_plugins
from tests.kube.support.waiting import until

pytestmark = pytest.mark.kube


def test_uninstalling_waits_until_kubelets_forget_the_plugin_and_leaves_nothing_behind(
    chart, cluster
):
    """With the chart's defaults.

    A kubelet forgets a plugin after five minutes, or when it has lost its record, as here.
    """
    node = layout.NODES[0]
    chart.on_agent(node, "penstock", "grant", "left", "--memory", "8Gi", "--cores", "30")
    plugin = f"{BY_PLUGIN}: penstock.io/vgpu"
    until("the node has the plugin's capacity", lambda: plugin in traces(cluster))
    shown = set(traces(cluster))
    for place in ("/run/penstock", "/var/lib/penstock", "/var/run/cdi"):
        assert f"{node}:{place}" in shown
    assert "validatingwebhookconfigurations/penstock" in shown
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        uninstalling = pool.submit(chart.uninstall)
        until(
            "the last hook is at work",
            lambda: is_said(chart, "removed capacities of") or uninstalling.done(),
        )
        # It is there again with each of the kubelet's reports, and taken off again.
        told = functools.partial(cluster.core.read_node, BY_PLUGIN)
        until("the kubelet tells it", lambda: "penstock.io/vgpu" in told().status.capacity)
        assert not uninstalling.done()
        for one in layout.NODES:  # on the other there may be one that tests before these left
            forget_plugins(cluster, one)
        uninstalling.result()
    chart.remove_namespace()
    assert set(traces(cluster)) <= chart.before


def is_said(chart, words: str) -> bool:
    """Whether the log of the hook that cleans the cluster has these words."""
    try:
        return words in chart.kubectl("--namespace", NAMESPACE, "logs", f"job/{RELEASE}-uninstall")
    except HelmError:  # it is not there yet
        return False
