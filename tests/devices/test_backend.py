"""The device backend protocol: a backend that reports everything, and one that reports little."""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import time
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from penstock.devices import Device, DeviceBackend, DeviceProcess, Observation
from penstock.devices.backends.nvidia import NvidiaDevices
from penstock.devices.backends.simulated import SimulatedDevices
from penstock.devices.inventory import DeviceReport, Health, NotAvailable
from penstock.model import PenstockError
from penstock.node.admission.admit import Request, admit
from penstock.node.agent.device_task import POLL_PERIOD_NS, DeviceTask
from penstock.node.enforcement import Enforcer, Subject
from penstock.node.supervision.tenant_report import Reporter
from penstock.node.tenants.state import State

from .fakes import GIB, PART, UUID, BareDevices, WholeDevices

if TYPE_CHECKING:
    from collections.abc import Callable

S = 1_000_000_000
MEMBERS = [name for name in vars(DeviceBackend) if not name.startswith("_")]


@pytest.fixture
def admitted(tmp_path):
    """A backend, and a tenant on its device with one living process."""
    made = []

    def make(backend: BareDevices):
        one = admit(
            State.open(tmp_path),
            Request(("x",), [GIB], [300], name="t", devices=(UUID,), measured="terminate"),
            backend,
        )
        environment = {"PENSTOCK_TENANT_DIR": str(one.tenant.directory)}
        program = subprocess.Popen(["/bin/sleep", "600"], env=environment)
        made.append((one, program))
        backend.users = [program.pid]
        return one, program

    yield make
    for one, program in made:
        os.close(one.lock)
        program.kill()
        program.wait()


def enforced(backend, one, seconds: float = 4.5) -> list[str]:
    """The names of the events of enforcement in so long a time, with a look each second."""
    enforcer = Enforcer(backend)
    begun_ns = time.monotonic_ns()
    events = []
    for number in range(int(seconds) + 1):
        time.sleep(max(0.0, begun_ns / S + number - time.monotonic()))
        subject = Subject.of(one.tenant, one.tenant.grant())
        events += enforcer.step(time.monotonic_ns(), [subject])
    return [event.event for event in events]


# The fakes against the protocol: they are only worth something if they leave out nothing of it.


@pytest.mark.parametrize("kind", [BareDevices, WholeDevices, NvidiaDevices, SimulatedDevices])
@pytest.mark.parametrize("name", MEMBERS)
def test_a_backend_has_each_member_of_the_protocol_with_the_same_parameters(kind, name):
    member = inspect.getattr_static(DeviceBackend, name)
    own = inspect.getattr_static(kind() if issubclass(kind, BareDevices) else kind, name)
    if isinstance(member, property):
        assert not inspect.isfunction(own)
    else:
        assert [*inspect.signature(own).parameters] == [*inspect.signature(member).parameters]


def optional(kind: type) -> set[str]:
    """The fields that a backend may leave out, by their types as they are written."""
    return {
        name
        for name, written in kind.__annotations__.items()
        if re.search(r"\| None\b|\bFigure\[", str(written))
    }


def reported(values: object, kind: type) -> set[str]:
    """Of the optional fields, those that have a value."""
    found = {name: getattr(values, name) for name in optional(kind)}
    return {n for n, one in found.items() if one is not None and not isinstance(one, NotAvailable)}


@pytest.mark.parametrize("backend", [BareDevices(), WholeDevices()], ids=["bare", "whole"])
def test_the_bare_backend_reports_nothing_that_is_optional_and_the_whole_one_all_of_it(backend):
    is_whole = isinstance(backend, WholeDevices)
    backend.users = [os.getpid()]
    device = backend.devices()[-1]
    (process,) = backend.processes(backend.devices()[0])
    for values, kind in (
        (device, Device), (process, DeviceProcess), (backend.observe()[-1].report, DeviceReport),
    ):  # fmt: skip
        assert optional(kind)
        assert reported(values, kind) == (optional(kind) if is_whole else set())
    libraries = backend.libraries()
    assert all(Path(one).is_absolute() for one in vars(libraries).values() if one)
    assert bool(libraries.driver and libraries.management) == is_whole
    assert bool(backend.environment("t")) == is_whole


def test_an_observation_has_no_field_that_the_fakes_leave_at_its_default():
    backend = WholeDevices()
    backend.codes = (7,)
    (first, _) = backend.observe()
    assert {one.name for one in fields(Observation)} == {"report", "error_codes"}
    assert (first.report.id, first.error_codes) == (UUID, (7,))


def failing(name: str) -> BareDevices:
    """A backend of which that member fails."""
    backend = BareDevices()
    backend.is_gone, backend.lost = name == "devices", {UUID}
    return backend


def test_the_bare_backend_fails_in_every_way_that_the_protocol_allows():
    raises = {
        name: re.findall(
            r"(?:Raises:?\s+`?)(\w+Error)", inspect.getdoc(getattr(DeviceBackend, name))
        )
        for name in MEMBERS
    }
    allowed = {name: found for name, found in raises.items() if found}
    assert allowed == {"devices": ["PenstockError"], "processes": ["DeviceLostError"]}
    device = BareDevices().devices()[0]
    for name, (error,), arguments in (
        ("devices", allowed["devices"], ()),
        ("processes", allowed["processes"], (device,)),
        ("look", allowed["processes"], (device,)),  # like `processes`
    ):
        with pytest.raises(PenstockError) as raised:
            getattr(failing(name), name)(*arguments)
        assert type(raised.value).__name__ == error
    (seen,) = failing("observe").observe()  # never raises for a lost device
    assert seen.report.health == Health("lost", "it fell off")


def test_repeated_looks_at_a_process_that_has_not_changed_return_the_same_objects():
    backend = WholeDevices()
    backend.users = [os.getpid()]
    device = backend.devices()[0]
    first = backend.look(device)
    assert backend.look(device).processes is first.processes
    backend.reports["memory_bytes"] = 2 * GIB
    assert backend.look(device).processes != first.processes


# What the node makes of them.


def test_shares_of_a_device_that_reports_hardly_anything_are_granted_and_shown(admitted, tmp_path):
    backend = BareDevices()
    one, _ = admitted(backend)
    assert [share.uuid for share in one.tenant.grant().devices] == [UUID]
    (row,) = Reporter(State.open(tmp_path)).rows()
    assert row.tenant == "t"
    with pytest.raises(PenstockError, match=r"(?i)tflops"):
        admit(State.open(tmp_path), Request(("x",), [GIB], None, tflops=10.0, name="u"), backend)


def test_tflops_and_partitions_are_granted_where_the_backend_reports_them(tmp_path):
    request = Request(("x",), [GIB], None, tflops=10.0, name="t", devices=(PART,))
    one = admit(State.open(tmp_path), request, WholeDevices())
    os.close(one.lock)
    (share,) = one.tenant.grant().devices
    assert (share.uuid, share.cores_permille) == (PART, 200)


def test_a_process_whose_figures_are_not_reported_is_undetectable_and_runs_on(admitted):
    backend = BareDevices()
    one, program = admitted(backend)
    assert enforced(backend, one) == ["undetectable"]
    assert program.poll() is None


def test_a_process_that_uses_nothing_by_all_figures_is_left_alone(admitted):
    backend = WholeDevices()
    backend.reports = {"memory_bytes": 0, "peak_memory_bytes": 0}
    one, program = admitted(backend)
    assert enforced(backend, one, 2) == []
    assert program.poll() is None


@pytest.mark.parametrize("backend", [BareDevices(), WholeDevices()], ids=["bare", "whole"])
def test_memory_beyond_the_quota_is_enforced_where_it_is_reported_though_another_device_is_lost(
    admitted, backend
):
    backend.reports["memory_bytes"] = 2 * GIB
    backend.lost = {PART}
    one, program = admitted(backend)
    assert "throttle" in enforced(backend, one)
    assert program.poll() in {None, -signal.SIGTERM}


def test_a_device_that_falls_off_or_a_driver_that_is_gone_ends_no_tenant(admitted, tmp_path):
    backend = BareDevices({"memory_bytes": 2 * GIB})
    one, program = admitted(backend)
    backend.lost = {UUID}
    assert enforced(backend, one, 2) == []
    backend.is_gone = True
    with pytest.raises(PenstockError, match="no device can be queried"):
        enforced(backend, one, 0)  # the agent reports that, and calls it again a second later
    assert program.poll() is None
    with pytest.raises(PenstockError, match="no device can be queried"):
        admit(State.open(tmp_path), Request(("x",), [GIB], [300], name="u"), backend)


def watched(backend) -> tuple[list[str], Callable[[], list[Device]]]:
    """An agent's device events, and a poll that returns the usable devices."""
    events: list[str] = []
    registry = SimpleNamespace(managed_tenants=list)
    task = DeviceTask(backend, registry, lambda event, **_: events.append(event))
    now_ns = [0]

    def look() -> list[Device]:
        now_ns[0] += POLL_PERIOD_NS
        assert task(now_ns[0])
        return task.usable(backend.devices())

    return events, look


@pytest.mark.parametrize("backend", [BareDevices(), WholeDevices()], ids=["bare", "whole"])
def test_released_devices_are_given_to_nobody_until_the_driver_is_opened_again(backend):
    events, look = watched(backend)
    usable = look()
    assert usable == backend.devices()
    backend.release("to replace the driver")
    backend.release("to replace the driver")  # may be called again
    with pytest.raises(PenstockError, match="lost"):
        look()
    backend.reopen()
    assert look() == usable
    each = len(usable)
    assert events == ["device-lost"] * each + ["device-recovered"] * each


def test_a_device_that_is_lost_or_unhealthy_is_not_used_and_the_other_one_is():
    backend = WholeDevices()
    events, look = watched(backend)
    backend.lost = {UUID}
    assert [one.uuid for one in look()] == [PART]
    backend.lost, backend.health, backend.codes = set(), Health("unhealthy", "too hot"), (79,)
    with pytest.raises(PenstockError, match="unhealthy"):
        look()
    backend.health = Health("ok")
    assert [one.uuid for one in look()] == [UUID, PART]
    assert sorted(set(events)) == [
        "device-lost", "device-recovered", "device-unhealthy", "device-xid",
    ]  # fmt: skip
