"""What holds for Pods with a share in both modes, by claims and by extended resources."""

from __future__ import annotations

import json
import sys

import pytest
from tests.kube.support.nodes import CDI, STATE
from tests.kube.support.pods import INSIDE, this_python
from tests.kube.support.waiting import until
from tests.kube.support.ways import MIB, BothWays, Share

pytestmark = pytest.mark.kube

WAYS = ("dra", "plugin")


@pytest.fixture(scope="module")
def ways(cluster, tmp_path_factory):
    meter = "--meter-dir=/var/lib/penstock-meter"  # as the chart has it: on the disk
    # User namespaces need mounts with mapped ids, which a node's disk here (an overlay) has not.
    shim = "--shim-dir=/run/penstock-shim"
    made = BothWays(cluster, tmp_path_factory.mktemp("placing"), meter, shim)
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
    """The messages of a Pod's events, by reason."""
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
    """The device's own record of a Pod's tenant.

    Busy time and its clock (ns), peak of memory (bytes).
    """
    done = node.call(sys.executable, "-c", RECORD, f"{STATE}/machines")
    assert done.returncode == 0, done.stderr
    of_it = [one for one in json.loads(done.stdout) if (one[0] or "").startswith(f"{pod}.")]
    return sum(one[1] for one in of_it), max(one[2] for one in of_it), sum(one[3] for one in of_it)


WINDOW_NS = 4 * 10**9


def test_a_numba_program_is_held_to_its_quota_and_one_that_bypasses_the_shim_is_ended(pods, ways):
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
            """The permille of the device's time that was used in some seconds, by its own count."""
            busy_ns, at_ns, _ = recorded(on, n)
            later = until(
                "seconds have passed",
                lambda: (now := recorded(on, n))[1] - at_ns >= WINDOW_NS and now,
            )
            permille = (later[0] - busy_ns) * 1000 / (later[1] - at_ns)
            print(f"{n} had {permille:.0f} permille of its device in {later[1] - at_ns} ns")
            return permille

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
    """The record, as `recorded`. Raises AssertionError if it is more than the share allows."""
    assert permille <= most
    return permille


ROOT_OF_NOTHING = {
    "runAsNonRoot": True,
    "runAsUser": 54321,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def test_pods_with_user_namespaces_of_their_own_have_shares_that_hold(pods, ways):
    """With `hostUsers: false` root in the container is an unprivileged user on the node."""
    program = (
        "sh",
        "-c",
        f"python3 {INSIDE / 'look.py'} && cat /proc/self/uid_map && id -u && exec sleep 1000",
    )
    for way in WAYS:
        for name, security in (("root", {}), ("user", ROOT_OF_NOTHING)):
            ways.run(
                pods, way, f"{name}-{way}", Share(2048, 100), *program, mounts=(INSIDE,),
                hostUsers=False, securityContext=security,
            )  # fmt: skip
    for way in WAYS:
        for name, uid in (("root", "0"), ("user", "54321")):
            said = until(
                f"{name}-{way} is done",
                lambda n=f"{name}-{way}": len(lines := pods.log(n).splitlines()) == 3 and lines,
                120,
            )
            seen = json.loads(said[0])
            (device,) = seen["devices"]
            assert (device["memory_bytes"], device["beyond"], device["within"]) == (
                2048 * MIB, 2, 0,
            )  # fmt: skip
            inside, outside, _ = said[1].split()
            assert (inside, said[2]) == ("0", uid)
            assert int(outside) >= 65536, "mapped to users whom the node does not have"
    for node in ways.nodes.values():  # known to the agent, which charges and may end them
        ours = [name for name in node.tenants() if name.startswith(("root-", "user-"))]
        assert len(ours) == 2


def metered_byte_s(node, pod: str) -> float:
    """The byte-seconds of memory of a Pod's tenants, by the node's meter."""
    done = node.run("usage", "--since=1h", "-o", "json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["usage"]
    return sum(row["memory_byte_seconds"] for row in rows if row["tenant"].startswith(f"{pod}."))


def test_after_a_reboot_claims_hold_again_and_a_pod_that_the_kubelet_rejects_frees_its_share(
    cluster, pods, ways
):
    """A kubelet rejects Pods for good if the plugin of their devices has not registered yet."""
    dra, plugin = (ways.nodes[way] for way in WAYS)
    most = Share(100_000, 900)  # no second one fits on a device
    program = ("python3", INSIDE / "look.py", "stay")
    ways.run(pods, "dra", "claim", most, *program, mounts=(INSIDE,), restart="Always")
    for name in ("one", "other"):
        ways.run(pods, "plugin", name, most, *program, mounts=(INSIDE,), restart="Always")
    before = {
        name: until(f"{name} says what it has", lambda n=name: first_line(pods, n))
        for name in ("claim", "one", "other")
    }
    assert before["one"]["devices"][0]["uuid"] != before["other"]["devices"][0]["uuid"]
    until("some is metered", lambda: metered_byte_s(dra, "claim"))
    used_byte_s = metered_byte_s(dra, "claim")

    machines = [cluster.process(node.name) for node in (dra, plugin)]
    for machine in machines:
        machine.kill()
    for node in (dra, plugin):
        until(f"{node.name} boots", lambda n=node: cluster.running(f"{n.name}-kubelet"), 120)
    for name in ("one", "other"):  # by then agents would be on their way, as Pods themselves
        pods.until_phase(name, "Failed", within_s=120)
        assert "penstock.io/vgpu" in pods.read(name).status.message
    until(
        "the claim waits for its driver",
        lambda: "not registered" in events(pods, "claim").get("FailedPrepareDynamicResources", ""),
        120,
    )
    for node in (dra, plugin):
        assert node.files(f"{STATE}/tenants") == node.files(CDI) == []
        node.agent.end()  # what is left of it here
        node.beside.end()
        node.start()
    ways.until_ready()

    def restarted() -> bool:
        (container,) = pods.read("claim").status.container_statuses
        return container.restart_count > 0 and container.state.running is not None

    until("the container of the claim starts again", restarted, 120)
    after = until("it says what it has", lambda: first_line(pods, "claim"))
    assert after["devices"] == before["claim"]["devices"]
    assert len(dra.tenants()) == 1
    until("it is metered on", lambda: metered_byte_s(dra, "claim") > used_byte_s)
    for name in ("new-one", "new-other"):  # as a Deployment makes them
        ways.run(pods, "plugin", name, most, *program, mounts=(INSIDE,))
    for name in ("new-one", "new-other"):
        until(f"{name} says what it has", lambda n=name: first_line(pods, n), 120)
    assert {name.partition(".")[0] for name in plugin.tenants()} == {"new-one", "new-other"}
