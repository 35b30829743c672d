"""A running Pod's share that grows and shrinks on a real node."""

from __future__ import annotations

import base64
import json
import secrets
import signal
import time
from typing import TYPE_CHECKING

import pytest
from tests.kube.support.placing import Placing
from tests.kube.support.waiting import until

from penstock.kube.objects.names import HELD, PLACED, RESIZE
from penstock.kube.objects.placement import read_placement
from penstock.model.share import Share
from penstock_shim.pages import read_quota

if TYPE_CHECKING:
    from pathlib import Path
from tests.kube.support.plugin_pods import (
    GIB,
    LOOK,
    container,
    events,
    nothing_left,
    pod,
    until_said,
)

pytestmark = pytest.mark.kube


def test_a_running_pods_share_grows_and_shrinks_while_extender_and_plugin_are_killed(
    cluster, pods, plugin_nodes, tmp_path
):
    """Another Pod on the same device grows by what the first gives back, and not before."""
    node = next(iter(plugin_nodes.values()))
    placing = Placing(cluster, tmp_path)
    placing.start()
    try:
        for name, memory, cores in (("grows", "20Gi", 300), ("beside", "100Gi", 400)):
            one = container("main", *LOOK, "watch")
            one["resources"]["limits"] |= {
                "penstock.io/memory": memory, "penstock.io/cores-permille": str(cores),
            }  # fmt: skip
            body = pod(name, one, nodeSelector={"kubernetes.io/hostname": node.name})
            pods.core.create_namespaced_pod(pods.namespace, body)
            until_said(pods, name)
        (uuid,) = placement_of(pods, "grows")
        assert placement_of(pods, "beside") == {uuid: Share(100 * GIB, 400)}
        until_in_force(pods, "grows", tmp_path, Share(20 * GIB, 300))

        ask(pods, "grows", "30Gi", 500)
        until_in_force(pods, "grows", tmp_path, Share(30 * GIB, 500))
        until("it is told", lambda: "VgpuGrown: main: 30Gi and 50 %" in events(pods, "grows"))
        until("by the node too", lambda: "VgpuResized: " in events(pods, "grows"))

        placing.kill()
        ask(pods, "grows", "60Gi", 500)
        placing.start_extender()
        until("it is refused", lambda: "30Gi more were requested" in events(pods, "grows"))
        assert f"VgpuResizeRefused: device {uuid} has 10.4" in events(pods, "grows")
        assert placement_of(pods, "grows") == {uuid: Share(30 * GIB, 500)}

        # Nobody follows: what is given back is still in use, and nobody gets it.
        node.beside.kill()
        ask(pods, "grows", "5Gi", 100)
        ask(pods, "beside", "120Gi", 400)
        until("it shrinks", lambda: placement_of(pods, "grows") == {uuid: Share(5 * GIB, 100)})
        until("the other waits", lambda: "20Gi more were requested" in events(pods, "beside"))
        assert placement_of(pods, "grows", HELD) == {uuid: Share(30 * GIB, 500)}
        placing.kill()
        placing.start_extender()
        time.sleep(2)  # it looks every second
        assert placement_of(pods, "beside") == {uuid: Share(100 * GIB, 400)}
        node.beside.start()
        until_in_force(pods, "grows", tmp_path, Share(5 * GIB, 100))
        until_in_force(pods, "beside", tmp_path, Share(120 * GIB, 400))
        assert placement_of(pods, "grows", HELD) == {}
        until("it is told", lambda: "VgpuShrunk" in events(pods, "grows"))
        moves_below_on_its_node(pods, node, tmp_path)
        is_had_by_who_waits(pods, node)
        for name in ("grows", "beside"):
            assert pods.read(name).status.container_statuses[0].restart_count == 0
    finally:
        placing.stop()
    pods.core.delete_collection_namespaced_pod(pods.namespace)
    nothing_left(plugin_nodes)


def moves_below_on_its_node(pods, node, tmp_path: Path) -> None:
    """An administrator can resize the tenant below its accounted share, and not above it."""
    (name,) = [one for one in node.tenants() if one.startswith("grows")]
    assert "accounted for 5Gi" in node.run("quota", "set", name, "--memory=6Gi").stderr
    assert node.run("quota", "set", name, "--memory=4Gi").returncode == 0
    node.beside.restart(signal.SIGKILL)
    node.until_ready()
    until_in_force(pods, "grows", tmp_path, Share(4 * GIB, 100))


def is_had_by_who_waits(pods, node) -> None:
    """A Pod that waits to be placed gets what a running one gives back."""
    for name, memory in (("fills", "120Gi"), ("waits", "30Gi")):
        one = container("main", *LOOK, "watch")
        one["resources"]["limits"]["penstock.io/memory"] = memory
        one["resources"]["limits"]["penstock.io/cores-permille"] = "100"
        body = pod(name, one, nodeSelector={"kubernetes.io/hostname": node.name})
        pods.core.create_namespaced_pod(pods.namespace, body)
        until(
            "it is looked at",
            lambda n=name: "Scheduled" in events(pods, n) or "FailedScheduling" in events(pods, n),
        )
    assert not pods.read("waits").spec.node_name
    ask(pods, "beside", "100Gi", 400)
    until_said(pods, "waits")


def ask(pods, name: str, memory: str, cores_permille: int) -> None:
    """Requests other amounts for a running Pod, as its owner does."""
    wish = {"main": {"memory": memory, "cores-permille": cores_permille}}
    body = {"metadata": {"annotations": {RESIZE: json.dumps(wish)}}}
    pods.core.patch_namespaced_pod(name, pods.namespace, body)


def placement_of(pods, name: str, annotation: str = PLACED) -> dict[str, Share]:
    text = (pods.read(name).metadata.annotations or {}).get(annotation)
    return dict(read_placement(text)["main"]) if text else {}


def until_in_force(pods, name: str, tmp_path: Path, share: Share) -> None:
    """Returns when the Pod's program sees the share, by CUDA and its quota page."""

    def now() -> bool:
        last = json.loads(pods.log(name).splitlines()[-1])
        file = tmp_path / f"page-{secrets.token_hex(4)}"
        file.write_bytes(base64.b64decode(last["page"]))
        (limit,) = read_quota(file).limits.devices
        found = last.get("memory_bytes"), limit.memory_bytes, limit.cores_permille
        return found == (share.memory_bytes, share.memory_bytes, share.cores_permille)

    until(f"{name} sees {share}", now)
