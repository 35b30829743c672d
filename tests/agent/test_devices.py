"""Device failures under a running agent: effects on tenants, reports, and recovery."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.agent.conftest import Node, request, wait_until
from tests.agent.support.programs import backlogged

from penstock.model import PenstockError
from penstock_shim import paths, simulator


class Metrics:
    """The current metrics, by metric and label value."""

    def __init__(self, node):
        url = f"http://127.0.0.1:{node.started['metrics_port']}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            text = answer.read().decode()
        self.samples = [s for f in text_string_to_metric_families(text) for s in f.samples]

    def of(self, name, **labels):
        """The value of a series; None: there is none."""
        found = [
            one.value
            for one in self.samples
            if one.name == name and labels.items() <= one.labels.items()
        ]
        assert len(found) <= 1, found
        return found[0] if found else None


def listed(node, kind):
    """The output of `penstock devices -o json`, by UUID."""
    done = node("devices", f"--kind={kind}", "-o", "json")
    assert done.returncode == 0, done.stderr
    (survey,) = json.loads(done.stdout)["kinds"]
    return {one["id"]: one for one in survey["devices"]}


def refusal(node, *devices):
    """Why the agent refuses a tenant on these devices; None: it grants it."""
    name = f"new{len(list((node.state / 'tenants').iterdir()))}"
    with node.client() as agent:
        try:
            agent.grant(request(name, cores=10, memory=1 << 30, devices=devices))
        except PenstockError as error:
            return str(error)
    return None


def kinds_of(node, tenant):
    return [event["event"] for event in node.events(tenant)]


def is_suspect(node, tenant):
    return {"throttle", "suspend", "terminate", "uncharged"} & set(kinds_of(node, tenant))


def wait_for_measured_use(node, machine, device_uuid):
    """The device's own figures are in the metrics, and metered beside what was charged."""
    held = wait_until(
        lambda: Metrics(node).of("penstock_tenant_memory_measured_bytes", tenant="hit")
    )
    assert held >= machine.devices()[0].context_bytes
    used = Metrics(node).of("penstock_device_memory_used_bytes", device_uuid=device_uuid)
    assert used > held
    wait_until(
        lambda: (
            Metrics(node).of("penstock_device_utilisation_ratio", device_uuid=device_uuid) > 0.05
        )
    )
    wait_until(
        lambda: (
            Metrics(node).of("penstock_tenant_measured_device_seconds_total", tenant="hit") > 0.05
        )
    )


def assert_runs_on_unharmed(node, tenant, program):
    launches = node.usage(tenant).devices[0].launches
    wait_until(lambda: node.usage(tenant).devices[0].launches > launches + 50)
    assert program.poll() is None
    assert not is_suspect(node, tenant)
    assert "device-lost" not in kinds_of(node, tenant)


def test_a_lost_device_is_said_to_be_lost_takes_nothing_away_and_comes_back(make_node):
    node = make_node("--simulate=h200,2")
    with simulator.Machine(node.state / "machines" / "h200x2") as machine:
        first, second = (device.uuid for device in machine.devices())
        hit = node.launch(node.tenant("hit", devices=["0"]), *backlogged(600))
        spared = node.launch(node.tenant("spared", devices=["1"]), *backlogged(600))
        for tenant in ("hit", "spared"):
            wait_until(lambda t=tenant: node.usage(t).devices[0].launches > 50)

        wait_for_measured_use(node, machine, first)
        pages = [node.state / "tenants" / "hit" / page for page in ("quota", "usage")]
        before = [page.stat().st_ino for page in pages]
        machine.inject("device-lost", device=0)
        wait_until(lambda: "device-lost" in kinds_of(node, "hit"))
        wait_until(lambda: Metrics(node).of("penstock_device_available", device_uuid=first) == 0)
        told = Metrics(node)
        assert told.of("penstock_device_healthy", device_uuid=first) == 0
        assert told.of("penstock_device_memory_used_bytes", device_uuid=first) is None
        assert told.of("penstock_device_available", device_uuid=second) == 1
        shown = listed(node, "simulated")
        assert shown[first]["health"] == {"state": "lost", "reason": "the GPU is lost"}
        assert shown[first]["busy_permille"] is None
        assert "lost" in shown[first]["not_available"]["busy_permille"]["why"]
        assert shown[second]["health"]["state"] == "ok"
        assert "is lost" in refusal(node, "0")
        assert refusal(node) is None  # there is another
        rows = {row["tenant"]: row for row in json.loads(node("ps", "-o", "json").stdout)}
        assert rows["hit"]["memory"]["device_measured_bytes"] is None
        assert rows["spared"]["memory"]["device_measured_bytes"] > 0
        hit.wait(30)  # it saw the driver's own error
        assert [page.stat().st_ino for page in pages] == before
        with node.client() as agent:
            assert {"hit", "spared"} <= {tenant.name for tenant in agent.tenants()}

        assert_runs_on_unharmed(node, "spared", spared)  # it has the other device
        machine.lift(0)
        wait_until(lambda: "device-recovered" in kinds_of(node, "hit"))
        assert refusal(node, "0") is None
        assert listed(node, "simulated")[first]["health"]["state"] == "ok"
        wait_until(lambda: Metrics(node).of("penstock_device_available", device_uuid=first) == 1)


def test_nothing_is_granted_where_every_device_is_lost(node):
    with node.machine() as machine:
        machine.inject("device-lost")
        wait_until(lambda: "is lost" in (refusal(node) or ""))
        machine.lift()
        wait_until(lambda: refusal(node) is None)


class RealNode(Node):
    """An agent that finds a driver in the library path, as on a machine with GPUs.

    The driver is the simulated one, and a file beside it names its simulated machine: nothing in
    the agent's environment or options says that anything is simulated.
    """

    def __init__(self, state, spec="h200,2"):
        super().__init__(state)
        self.driver = state.with_name("driver")
        self.driver.mkdir()
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            shutil.copy(paths.sim_dir() / name, self.driver)
        self.simulated = simulator.create_machine(self.driver / "machine", spec)

    @property
    def environment(self):
        # Beside other tests' nodes, on this machine.
        lock = {"PENSTOCK_NODE_LOCK": str(self.driver / "lock")}
        return {**super().environment, **lock, "LD_LIBRARY_PATH": str(self.driver)}

    def agent_command(self, *options):
        return [o for o in super().agent_command(*options) if not o.startswith("--simulate")]

    def log(self):
        """The next line of the agent's own log."""
        return json.loads(self.process.stderr.readline())


@pytest.fixture
def real(tmp_path):
    node = RealNode(tmp_path / "state")
    node.start()
    yield node
    node.close()
    node.simulated.close()


def test_one_agent_runs_the_real_devices_of_a_node_whichever_its_state_directory(real, tmp_path):
    command = [option for option in real.agent_command() if "meter-dir" not in option]
    places = [f"--meter-dir={tmp_path}/other-meter", f"--state-dir={tmp_path}/other"]
    done = real(*command, *places)
    assert done.returncode == 2
    assert "an agent already manages this node's devices" in done.stderr
    assert f"pid {real.process.pid} holds" in done.stderr


def test_an_xid_error_makes_a_device_unhealthy_until_it_was_reset(real):
    first, second = (device.uuid for device in real.simulated.devices())
    assert "simulated" not in real.started["devices"][0]
    program = real.launch(real.tenant("t", devices=["0"]), *backlogged(600))
    wait_until(lambda: real.usage("t").devices[0].launches > 50)

    real.simulated.report_xid(31)  # a program's own fault
    line = real.log()
    assert (line["event"], line["device"], line["xids"]) == ("device-xid", first, [31])
    wait_until(
        lambda: (
            Metrics(real).of("penstock_device_xid_errors_total", device_uuid=first, xid="31") == 1
        )
    )
    assert Metrics(real).of("penstock_device_healthy", device_uuid=first) == 1
    assert refusal(real, "0") is None

    real.simulated.report_xid(79)
    wait_until(lambda: "device-unhealthy" in kinds_of(real, "t"))
    (event,) = (e for e in real.events("t") if e["event"] == "device-unhealthy")
    assert "XID 79 (the GPU has fallen off the bus)" in event["reason"]
    assert [real.log()["event"] for _ in range(2)] == ["device-xid", "device-unhealthy"]
    assert "XID 79" in refusal(real, "0")
    wait_until(lambda: Metrics(real).of("penstock_device_healthy", device_uuid=first) == 0)
    assert Metrics(real).of("penstock_device_available", device_uuid=first) == 1
    shown = listed(real, "simulated")  # the command knows whose library it loaded
    assert "XID 79" in shown[first]["health"]["reason"]
    assert shown[second]["health"]["state"] == "ok"
    assert program.poll() is None  # whoever is on it stays, and the driver decides
    assert not is_suspect(real, "t")

    real.simulated.lift(0)
    wait_until(lambda: "device-recovered" in kinds_of(real, "t"))
    assert refusal(real, "0") is None

    # Away and back alone, it is listened to as before.
    real.simulated.inject("device-lost", device=0)
    wait_until(lambda: "device-lost" in kinds_of(real, "t"))
    assert Metrics(real).of("penstock_device_healthy", device_uuid=second) == 1
    real.simulated.lift(0)
    wait_until(lambda: refusal(real, "0") is None)
    real.simulated.report_xid(119)
    wait_until(lambda: "XID 119" in (refusal(real, "0") or ""))


def test_a_driver_that_goes_away_and_comes_back_is_found_again(real):
    first, second = (device.uuid for device in real.simulated.devices())
    real.tenant("t", devices=["1"])
    library = real.driver / "libnvidia-ml.so.1"
    library.rename(library.with_name("libnvidia-ml.so.former"))
    for device in (0, 1):
        real.simulated.inject("device-lost", device=device)
    wait_until(lambda: "device-lost" in kinds_of(real, "t"))
    assert "is lost" in refusal(real)
    wait_until(
        lambda: (
            "Not Found" in listed(real, "nvidia")[first]["health"]["reason"]
            and listed(real, "nvidia")[second]["health"]["state"] == "lost"
        )
    )
    for device in (0, 1):
        real.simulated.lift(device)
    wait_until(lambda: "is lost" in refusal(real))  # the library is still away
    shutil.copy(
        library.with_name("libnvidia-ml.so.former"), library
    )  # another file: the new driver's
    wait_until(lambda: "device-recovered" in kinds_of(real, "t"))
    assert refusal(real, "1") is None
    maps = Path(f"/proc/{real.process.pid}/maps").read_text()
    assert "former" not in maps
    real.simulated.report_xid(48, device=1)  # and its events are listened to again
    wait_until(lambda: "XID 48 (double-bit ECC error)" in (refusal(real, "1") or ""))
    assert real.process.poll() is None


def held_of(real) -> list[str]:
    """The driver files that the agent has mapped or open.

    The file that represents the simulated devices themselves is left out.
    """
    process = Path(f"/proc/{real.process.pid}")
    found = process.joinpath("maps").read_text().splitlines()
    for one in process.joinpath("fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.append(str(one.readlink()))
    return [one for one in found if f"{real.driver}/lib" in one or "/dev/nvidia" in one]


def test_the_agent_lets_go_of_the_driver_and_takes_another_one_up_without_a_restart(real):
    first, second = (device.uuid for device in real.simulated.devices())
    program = real.launch(real.tenant("t", devices=["0"]), *backlogged(600))
    wait_until(lambda: real.usage("t").devices[0].launches > 50)
    assert held_of(real)
    with real.client() as agent:
        agent.release_driver("an upgrade of the driver")
        agent.release_driver("an upgrade of the driver")  # whoever asks again is answered the same
        assert agent.node().driver_released == "an upgrade of the driver"
        wait_until(lambda: not held_of(real))
        wait_until(lambda: "device-lost" in kinds_of(real, "t"))
        said = [device.health_reason for device in agent.node().devices]
        assert said == ["an upgrade of the driver"] * 2
        assert "an upgrade of the driver" in refusal(real, "1")
        time.sleep(1.5)  # rounds, looks at devices, and metrics that are read do not open it again
        assert Metrics(real).of("penstock_device_available", device_uuid=second) == 0
        assert not held_of(real)
        assert program.poll() is None, "whoever is on it stays: to drain is somebody else's"
        assert not is_suspect(real, "t")
        program.kill()
        agent.revoke("t", 0)  # without a driver
        assert agent.tenants() == []

        library = real.driver / "libnvidia-ml.so.1"
        library.rename(library.with_name("libnvidia-ml.so.former"))
        agent.reopen_driver()
        wait_until(lambda: "Not Found" in agent.node().devices[0].health_reason)
        shutil.copy(library.with_name("libnvidia-ml.so.former"), library)  # the new driver's
        wait_until(lambda: {one.health for one in agent.node().devices} == {"ok"})
        assert agent.node().driver_released == ""
        assert {one.uuid for one in agent.node().devices} == {first, second}
        assert held_of(real)
        assert not [one for one in held_of(real) if "former" in one]
    assert refusal(real, "0") is None
    events = [real.log()["event"] for _ in range(3)]
    assert events[0] == "driver-released"
