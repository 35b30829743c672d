"""Resumption of a released tenant on another, equal device."""

from __future__ import annotations

import time

import pytest
from tests.agent.conftest import wait_until
from tests.suspension.conftest import MIB, free_of, released, resume, settled, tenant_of, used

from penstock.model import PenstockError
from penstock_shim.pages import read_quota


def test_a_tenant_goes_on_on_another_device_with_the_same_result(two_devices, work):
    node = two_devices
    granted = node.tenant("t", cores=600, devices=["0"])
    undisturbed = work(node, granted, 300, 16, "fork").result()
    worker = work(node, granted, 300, 16, "fork")
    worker.reached(10)
    before = used(node, 0)
    released(node, "t")
    other = node.tenant("other", cores=500, devices=["0"])
    with pytest.raises(PenstockError, match="other holds"):
        resume(node, "t")
    resume(node, "t", "1")
    settled(node, "t", "")
    (share,) = tenant_of(node, "t").shares
    assert share.device_index == 1
    assert used(node, 0) == 0
    assert used(node, 1) == before
    assert free_of(node, 0).free_cores_permille == 500
    assert free_of(node, 1).free_cores_permille == 400
    assert worker.result() == undisturbed
    assert other


def test_device_time_stays_with_the_device_on_which_it_was_spent(two_devices, work):
    node = two_devices
    granted = node.tenant("t", cores=600, devices=["0"])
    worker = work(node, granted, 400, 8, "hold")
    worker.reached(30)
    spent = wait_until(lambda: (told := spent_by_device(node))[0] and told)
    for there in ("1", "0", "1"):
        released(node, "t")
        resume(node, "t", there)
        settled(node, "t", "")
        worker.reached(worker.steps + 20)
    worker.reached(400)
    total = node.usage("t").devices[0].spent_ns
    wait_until(lambda: abs(sum(spent_by_device(node)) - total) < total // 100)
    first, second = spent_by_device(node)
    assert first >= spent[0]
    assert second > 0


def spent_by_device(node) -> list[int]:
    with node.client() as agent:
        devices = [one.uuid for one in agent.node().devices]
        usage = agent.used(0, int(time.time()) + 60, by="device")
    found = {row.group["device_uuid"]: row.amounts.charged_ns for row in usage.rows}
    return [found.get(uuid, 0) for uuid in devices]


def test_a_device_that_is_not_equal_or_full_is_refused(two_devices, work):
    node = two_devices
    granted = node.tenant("t", cores=600, devices=["0"])
    worker = work(node, granted, 300, 8)
    with pytest.raises(PenstockError, match="not released"):
        resume(node, "t", "1")
    released(node, "t")
    other = node.tenant("other", cores=500, devices=["1"])
    with pytest.raises(PenstockError, match="other holds"):
        resume(node, "t", "1")
    with pytest.raises(PenstockError, match="2 devices were named"):
        resume(node, "t", "0", "1")
    assert tenant_of(node, "t").suspension == "released"
    assert used(node, 0) < MIB
    resume(node, "t", "0")
    settled(node, "t", "")
    worker.result()
    assert other


def test_time_slices_follow_a_tenant_to_its_new_device(two_devices):
    node = two_devices
    node.tenant("t", cores=600, devices=["0"])
    released(node, "t")
    resume(node, "t", "1")
    settled(node, "t", "")
    node.tenant("other", cores=400, devices=["1"])
    limits = read_quota(node.state / "tenants" / "t" / "quota").limits
    with node.client() as agent:
        assert limits.devices[0].uuid == agent.node().devices[1].uuid
    wait_until(
        lambda: read_quota(node.state / "tenants" / "t" / "quota").limits.devices[0].sharers == 2
    )


def test_a_program_that_is_started_with_the_former_environment_finds_the_new_device(
    two_devices, work
):
    node = two_devices
    granted = node.tenant("t", devices=["0"])
    released(node, "t")
    resume(node, "t", "1")
    settled(node, "t", "")
    worker = work(node, granted, 20, 8, "hold")
    assert used(node, 0) == 0
    assert used(node, 1) > 8 * MIB
    assert worker.process.poll() is None
