"""A device backend of no vendor's that reports as little as the protocol allows, and fails."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import time

import pytest

from penstock.devices import (
    Device,
    DeviceBackend,
    DeviceLook,
    DeviceLostError,
    DeviceProcess,
    DriverLibraries,
    Observation,
)
from penstock.devices.inventory import NotAvailable, blank
from penstock.model import PenstockError
from penstock.node.admission.admit import Request, admit
from penstock.node.enforcement import Enforcer, Subject
from penstock.node.supervision.tenant_report import Reporter
from penstock.node.tenants.state import State

GIB = 1 << 30
S = 1_000_000_000
UUID = "GPU-ac0e0000-0000-4000-8000-000000000001"


class BareDevices:
    """One device, of which nothing is known but its UUID, its memory and who uses it."""

    def __init__(self, reports: dict[str, int | None]) -> None:
        self.reports = reports  # of each process
        self.users: list[int] = []
        self.fails: str = ""
        self.is_gone = False
        self.released = ""
        self.machine = None

    def devices(self) -> list[Device]:
        if self.is_gone:
            raise PenstockError("no device can be queried", "its driver is gone", "load it")
        return [Device(0, UUID, "Acme", 64 * GIB, 1 << 28, tflops=None, simulated=False)]

    def observe(self) -> list[Observation]:
        lacking = NotAvailable("its driver does not report it")
        return [Observation(blank("gpu", 0, UUID, "Acme", lacking), error_codes=(7,))]

    def release(self, reason: str) -> None:
        self.released = reason

    def reopen(self) -> None:
        self.released = ""

    def libraries(self) -> DriverLibraries:
        return DriverLibraries("", "")

    def environment(self, tag: str) -> dict[str, str]:
        return {}

    def processes(self, device: Device) -> list[DeviceProcess]:
        if self.fails:
            raise DeviceLostError(self.fails, "it fell off", "reset it")
        now_ns = time.monotonic_ns()
        known = dict.fromkeys(("peak_memory_bytes", "busy_ns", "busy_permille", "memory_bytes"))
        fields = {**known, **self.reports, "at_ns": now_ns, "alive": True}
        return [DeviceProcess(pid=pid, tag=None, **fields) for pid in self.users]

    def look(self, device: Device) -> DeviceLook:
        return DeviceLook(time.monotonic_ns(), self.processes(device))


@pytest.fixture
def admitted(tmp_path):
    """A backend, and a tenant on its device with one living process."""
    made = []

    def make(**reports: int | None):
        backend = BareDevices(reports)
        one = admit(
            State.open(tmp_path), Request(("x",), [GIB], [300], name="t", measured="terminate"),
            backend,
        )  # fmt: skip
        environment = {"PENSTOCK_TENANT_DIR": str(one.tenant.directory)}
        program = subprocess.Popen(["/bin/sleep", "600"], env=environment)
        made.append((one, program))
        backend.users = [program.pid]
        return backend, one, program

    yield make
    for one, program in made:
        os.close(one.lock)
        program.kill()
        program.wait()


def enforced(backend, one, seconds: float = 4.5) -> list[str]:
    """Names of what enforcement did in so long a time, a look a second."""
    enforcer = Enforcer(backend)
    begun_ns = time.monotonic_ns()
    events = []
    for number in range(int(seconds) + 1):
        time.sleep(max(0.0, begun_ns / S + number - time.monotonic()))
        subject = Subject.of(one.tenant, one.tenant.grant())
        events += enforcer.step(time.monotonic_ns(), [subject])
    return [event.event for event in events]


def test_a_backend_that_fills_the_protocol_has_each_member_with_the_same_parameters():
    wanted = {name for name in vars(DeviceBackend) if not name.startswith("_")}
    bare = BareDevices({})
    assert wanted <= set(dir(bare))
    for name in wanted:
        member = inspect.getattr_static(DeviceBackend, name)
        if not isinstance(member, property):
            own = list(inspect.signature(getattr(bare, name)).parameters)
            assert own == list(inspect.signature(member).parameters)[1:], name


def test_shares_of_a_device_that_reports_hardly_anything_are_granted_and_shown(admitted, tmp_path):
    backend, one, _ = admitted()
    assert [share.uuid for share in one.tenant.grant().devices] == [UUID]
    (row,) = Reporter(State.open(tmp_path)).rows()
    assert row.tenant == "t"
    with pytest.raises(PenstockError, match=r"(?i)tflops"):
        admit(State.open(tmp_path), Request(("x",), [GIB], None, tflops=10.0, name="u"), backend)


def test_what_a_device_does_not_report_of_a_process_is_said_and_never_held_against_it(admitted):
    backend, one, program = admitted()
    assert enforced(backend, one) == ["undetectable"]
    assert program.poll() is None


def test_memory_beyond_the_quota_is_enforced_where_the_device_reports_it_alone(admitted):
    backend, one, program = admitted(memory_bytes=2 * GIB)
    assert "throttle" in enforced(backend, one)
    assert program.poll() in {None, -signal.SIGTERM}


def test_a_device_that_falls_off_or_a_driver_that_is_gone_ends_no_tenant(admitted, tmp_path):
    backend, one, program = admitted(memory_bytes=2 * GIB)
    backend.fails = "device 0 does not respond"
    assert enforced(backend, one, 2) == []
    backend.is_gone = True
    with pytest.raises(PenstockError, match="no device can be queried"):
        enforced(backend, one, 0)  # the agent reports that, and calls it again a second later
    assert program.poll() is None
    with pytest.raises(PenstockError, match="no device can be queried"):
        admit(State.open(tmp_path), Request(("x",), [GIB], [300], name="u"), backend)
