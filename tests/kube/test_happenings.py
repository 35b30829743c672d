"""Events of Pods are written for people who have no shell on the node."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from penstock.kube.kubelet.node_pods import read_pod
from penstock.kube.kubelet.pod_events import Told, event_of, message_of
from penstock.node.enforcement.container_pids import Inside, look_inside
from penstock_api.v1 import agent_pb2 as pb
from penstock_shim.pages import PageError

ID, OLD, OTHER = ("a" * 64, "b" * 64, "c" * 64)


def happened(event: str, reason: str, *processes: dict) -> pb.Event:
    details = json.dumps({"processes": list(processes)})
    return pb.Event(tenant="t", event=event, reason=reason, details=details)


def a_pod() -> object:
    ended = {"terminated": {"containerID": f"containerd://{OLD}"}}
    statuses = [
        {"name": "main", "containerID": f"containerd://{ID}"},
        {"name": "side", "containerID": f"containerd://{OTHER}", "lastState": ended},
    ]
    return read_pod(
        {
            "metadata": {"namespace": "n", "name": "p", "uid": "u"},
            "status": {"containerStatuses": statuses},
        }
    )


def told(event: pb.Event, **labels: str) -> str:
    tenant = pb.Tenant(labels={"penstock.io/owner": "o", **labels})
    kind = Told(0, 0.0, 0.0, "").and_then(event)
    return event_of(a_pod(), tenant, event.event, kind, "node-1")["message"]


def process(pid: int, inner: int = 0, container: str = "") -> dict:
    one: dict = {"pid": pid, "command": "python3"}
    return one | ({"container_pid": inner, "container_id": container} if inner else {})


def test_a_process_is_named_by_its_own_pid_and_its_container():
    one = happened("uncharged", "pid 4711 and 1 more uses it", process(4711, 7, ID))
    assert told(one) == "process 7 and 1 more uses it; process 7 of container main (python3)"
    several = happened("kill", "pid 4711, 12 went on", process(4711, 7, OTHER), process(12))
    assert told(several) == (
        "process 7, 12 of the node went on; process 7 of container side (python3); "
        "process 12 of the node (python3)"
    )
    # one that ran in the container before it was restarted; a tenant that one container has
    assert "of container side" in told(happened("kill", "", process(1, 2, OLD)))
    assert "of container own" in told(happened("kill", "", process(1, 2)), container="own")


def test_no_advice_needs_a_shell_on_the_node(tmp_path):
    damaged = str(PageError(tmp_path / "usage", "is damaged"))
    assert "remove its directory" in damaged
    said = told(happened("damaged", damaged))
    assert said.endswith("is damaged: delete the Pod, so that its controller creates another")


def test_a_suspension_ordered_without_a_reason_is_described_as_an_order():
    assert message_of(pb.Event(event="suspended")) == "by an administrator, who gave no reason"
    assert message_of(pb.Event(event="suspended", reason="for a while")) == "for a while"


def test_the_pid_inside_is_that_of_the_innermost_namespace():
    """The process is in a pid namespace of its own, as in a container."""
    line = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    program = "import time; print('up', flush=True); time.sleep(60)"
    with subprocess.Popen([*line, sys.executable, "-c", program], stdout=subprocess.PIPE) as outer:
        assert outer.stdout.readline() == b"up\n"
        (child,) = (
            int(one)
            for one in subprocess.run(
                ["pgrep", "--parent", str(outer.pid)], capture_output=True, text=True, check=True
            ).stdout.split()
        )
        assert look_inside(child) == Inside(1, "")
        outer.kill()
    assert look_inside(os.getpid()).pid == 0
    assert look_inside(child) in {Inside(), Inside(1, "")}  # it has ended, or is about to
