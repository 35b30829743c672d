"""One node, while the other has no driver and its kubelet takes its slices away."""

from __future__ import annotations

import signal
import sys

import pytest
from tests.kube.support.claims import (
    events,
    look,
    pools,
    seen,
    share,
)
from tests.kube.support.nodes import STATE
from tests.kube.support.waiting import until

from penstock.kube.objects.node_devices import read_devices

pytestmark = pytest.mark.kube


@pytest.fixture(scope="module")
def without_the_second(dra_nodes):
    """The second node without its driver; its kubelet removes its slices half a minute later."""
    node = dra_nodes["node-2"]
    node.beside.end()
    assert node.files("/var/lib/kubelet/plugins/penstock.io") == ["lock"]
    assert "penstock.io-reg.sock" not in node.files("/var/lib/kubelet/plugins_registry")
    return node


def test_a_program_that_bypasses_the_shim_is_ended_and_its_pods_events_say_so(
    pods, claims, dra_nodes, without_the_second
):
    config = {"onExceed": {"measured": "terminate", "grace": "1s"}}
    honest = claims.make("honest", **share(2048, 100))
    look(pods, "honest", honest, "stay", node="node-1")
    look(
        pods, "past", claims.make("past", config=config, **share(2048, 100)), "stay", "past",
        node="node-1",
    )  # fmt: skip
    pods.until_phase("past", "Failed")
    assert '{"past": 0}' in pods.log("past"), "it had the memory for a while"
    said = until(
        "an event says that it was ended",
        lambda: (found := events(pods, "past")).get("VgpuTerminated") and found,
    )
    assert "python3" in said["VgpuTerminated"]
    assert "VgpuMemoryDenied" in said
    assert pods.read("honest").status.phase == "Running"
    assert "VgpuTerminated" not in events(pods, "honest")

    # Told again from the beginning, the agent's events are the same Events, and counted as before.
    def counted() -> dict[str, int]:
        found = pods.core.list_namespaced_event(pods.namespace).items
        return {event.metadata.name: event.count for event in found if "Vgpu" in event.reason}

    before = counted()
    dra_nodes["node-1"].beside.restart(signal.SIGKILL)
    dra_nodes["node-1"].until_ready()
    pods.core.delete_namespaced_pod("honest", pods.namespace)
    until("the tenants are gone", lambda: dra_nodes["node-1"].tenants() == {})
    assert counted() == before


XID = """
import sys
from pathlib import Path
from penstock_shim.simulator import Machine
(file,) = Path(sys.argv[1]).glob("h200*")
machine, device = Machine(file), int(sys.argv[3])
machine.report_xid(79, device=device) if sys.argv[2] == "break" else machine.lift(device)
"""


def test_a_device_with_an_xid_error_gets_no_new_pod_until_it_has_recovered(
    cluster, pods, claims, dra_nodes, without_the_second
):
    node = dra_nodes["node-1"]

    def slice_devices() -> list:
        found = claims.api.list_resource_slice().items
        return [d for one in found if one.spec.node_name == "node-1" for d in one.spec.devices]

    def announced() -> list[bool]:
        text = cluster.core.read_node("node-1").metadata.annotations["penstock.io/devices"]
        return [one.healthy for one in read_devices(text)]

    holder = claims.make("holder", **share(1024, 100))
    look(pods, "holder", holder, "stay", node="node-1")
    until("it runs", lambda: seen(pods, "holder"))
    (result,) = claims.results("holder")
    at = [device.name for device in slice_devices()].index(result.device)

    def fault(act: str) -> None:
        done = node.call(sys.executable, "-c", XID, f"{STATE}/machines", act, str(at))
        assert done.returncode == 0, done.stderr

    fault("break")
    until(
        "the device is tainted",
        lambda: [bool(device.taints) for device in slice_devices()].count(True) == 1,
    )
    until("the annotation says so", lambda: announced().count(False) == 1)
    until("its Pod is told", lambda: "VgpuDeviceUnhealthy" in events(pods, "holder"))

    def health() -> set[str]:
        statuses = pods.read("holder").status.container_statuses[0]
        found = statuses.allocated_resources_status or []
        return {one.health for resource in found for one in resource.resources or []}

    until("the kubelet knows", lambda: health() == {"Unhealthy"})
    look(pods, "later", claims.make("later", **share(1024, 100)), "stay", node="node-1")
    until("the other device is given out", lambda: seen(pods, "later"))
    (other,) = claims.results("later")
    assert other.device != result.device
    assert pods.read("holder").status.phase == "Running", "what has a share of it keeps it"
    fault("lift")
    until("it is given out again", lambda: not any(device.taints for device in slice_devices()))
    until("the annotation says so", lambda: announced() == [True, True])
    until("the kubelet knows", lambda: health() == {"Healthy"})


def test_a_kubelet_that_was_stopped_while_a_pod_was_force_deleted_unprepares_later(
    cluster, pods, claims, dra_nodes, without_the_second
):
    node = dra_nodes["node-1"]
    look(pods, "away", claims.make("away", **share(1024, 100)), "stay", node="node-1")
    until("it runs", lambda: seen(pods, "away"))
    until("nobody else has a share", lambda: len(node.tenants()) == 1)
    kubelet = cluster.process("node-1-kubelet")
    kubelet.send_signal(signal.SIGSTOP)
    try:
        pods.core.delete_namespaced_pod("away", pods.namespace, grace_period_seconds=0)
        claims.api.delete_namespaced_resource_claim("away", pods.namespace)
        looked = len(node.beside.events("not looked for leftovers"))
        until(
            "leftovers are looked for, and the kubelet does not answer",
            lambda: len(node.beside.events("not looked for leftovers")) > looked,
        )
        assert len(node.tenants()) == 1, "its container runs"
    finally:
        kubelet.send_signal(signal.SIGCONT)
    until("the kubelet has ended it", lambda: node.tenants() == {})


def test_slices_disappear_with_their_driver_and_return_with_it(claims, without_the_second):
    until("the kubelet takes its slices away", lambda: "node-2" not in pools(claims), within_s=90)
    without_the_second.beside.start()
    without_the_second.until_ready()
    assert pools(claims)["node-2"][1] == 2
