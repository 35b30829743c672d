"""What holds for Pods with a share, by claims and by extended resources alike."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.kube.nodes import STATE
from tests.kube.pods import this_python
from tests.kube.waiting import until
from tests.kube.ways import MIB, BothWays, Share

pytestmark = pytest.mark.kube

INSIDE = Path(__file__).parent / "inside"
WAYS = ("dra", "plugin")


@pytest.fixture(scope="module")
def ways(cluster, tmp_path_factory):
    made = BothWays(cluster, tmp_path_factory.mktemp("placing"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


def first_line(pods, name: str) -> dict | None:
    """What the program said; None: nothing yet."""
    text = pods.log(name)
    assert "Error" not in text, text
    return json.loads(text.splitlines()[0]) if text.startswith("{") else None


def events(pods, name: str) -> dict[str, str]:
    """Of a Pod: messages by reason."""
    found = pods.core.list_namespaced_event(
        pods.namespace, field_selector=f"involvedObject.name={name}"
    ).items
    return {event.reason: event.message for event in found}


RECORD = """
import json, sys
from pathlib import Path
from penstock_shim.simulator import Machine
(file,) = Path(sys.argv[1]).glob("h200*")
with Machine(file) as machine:
    records = [one for device in machine.devices() for one in machine.record(device.index)]
print(json.dumps([(one.tag, one.busy_ns, one.at_ns, one.peak_memory_bytes) for one in records]))
"""


def recorded(node, pod: str) -> tuple[int, int, int]:
    """Of the processes of a Pod's tenant, by the device itself: busy and at (ns), peak (bytes)."""
    done = node.call(sys.executable, "-c", RECORD, f"{STATE}/machines")
    assert done.returncode == 0, done.stderr
    of_it = [one for one in json.loads(done.stdout) if (one[0] or "").startswith(f"{pod}.")]
    return sum(one[1] for one in of_it), max(one[2] for one in of_it), sum(one[3] for one in of_it)


WINDOW_NS = 4 * 10**9


def test_a_numba_program_is_held_to_its_memory_and_compute_and_who_goes_past_is_ended(pods, ways):
    shares = {"dra": Share(2048, 150), "plugin": Share(3072, 250)}
    for way, share in shares.items():
        mounts = tuple(this_python())
        program = (sys.executable, INSIDE / "numba_program.py")
        ways.run(pods, way, f"numba-{way}", share, *program, mounts=mounts)
        program = ("python3", INSIDE / "look.py", "stay", "past")
        ways.run(pods, way, f"past-{way}", Share(1024, 50), *program, mounts=(INSIDE,))
    for way, share in shares.items():
        name, node = f"numba-{way}", ways.nodes[way]
        said = until(f"{name} says what it may have", lambda n=name: first_line(pods, n), 120)
        assert pods.read(name).spec.node_name == node.name
        assert said["memory_bytes"] == share.memory_mib * MIB
        assert "CUDA_ERROR_OUT_OF_MEMORY" in said["beyond"]
        assert said["within"] is None

        def used(n=name, on=node) -> float:
            """Permille of the device's time in some seconds, as the device counts it."""
            busy_ns, at_ns, _ = recorded(on, n)
            later = until(
                "seconds have passed",
                lambda: (now := recorded(on, n))[1] - at_ns >= WINDOW_NS and now,
            )
            return (later[0] - busy_ns) * 1000 / (later[1] - at_ns)

        most = share.cores_permille + 30
        until(  # less is this machine's fault, more would be ours
            f"{name} gets most of its time and never more",
            lambda m=most, s=share, u=used: s.cores_permille * 0.6 < within(u(), m),
            120,
        )
        assert recorded(node, name)[2] <= share.memory_mib * MIB
    for way in WAYS:
        past = f"past-{way}"
        pods.until_phase(past, "Failed")
        assert '{"past": 0}' in pods.log(past), "it had the memory for a while"
        told = until("an event tells it", lambda n=past: events(pods, n).get("VgpuTerminated"))
        assert "python3" in told
        assert pods.read(f"numba-{way}").status.phase == "Running"
        assert not {"VgpuTerminated", "VgpuSuspended"} & events(pods, f"numba-{way}").keys()


def within(permille: float, most: float) -> float:
    """The same. Raises AssertionError: it is more than it may be."""
    assert permille <= most
    return permille


def status(pods, name: str):
    """Of its container; None: it has none yet."""
    return next(iter(pods.read(name).status.container_statuses or ()), None)


def metered_s(node, pod: str) -> float:
    """Device seconds of a Pod's tenants, as the node's meter has them."""
    done = node.run("usage", "--since=1h", "-o", "json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["usage"]
    return sum(row["device_seconds"] for row in rows if row["tenant"].startswith(f"{pod}."))


def test_a_reboot_ends_all_shares_and_pods_start_again_with_theirs(cluster, pods, ways):
    program = ("python3", INSIDE / "look.py", "stay")
    for way in WAYS:
        ways.run(pods, way, way, Share(4096, 300), *program, mounts=(INSIDE,), restart="Always")
    for way in WAYS:
        until(f"{way} says what it has", lambda n=way: first_line(pods, n))
    off = [cluster.process(node.name) for node in ways.nodes.values()]
    for machine in off:
        machine.kill()
    for node in ways.nodes.values():
        until("another boot", lambda n=node: cluster.running(f"{n.name}-kubelet"), 120)
    import time
    for node in ways.nodes.values():
        node.agent.end(); node.beside.end()
        node.start()
    for _ in range(30):
        for way in WAYS:
            pod = pods.read(way)
            print(time.time(), way, pod.status.phase, pod.status.reason, pod.status.message, pod.status.container_statuses and pod.status.container_statuses[0].state, flush=True)
        print({w: n.tenants().keys() for w, n in ways.nodes.items()})
        time.sleep(2)
    raise AssertionError
