"""Shares in the books: whatever is ordered, the shares on a device never exceed the device."""

from __future__ import annotations

import contextlib

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.conftest import request
from tests.suspension.conftest import GIB, settled

from penstock.model import PenstockError
from penstock.node.admission.resize import Resize
from penstock.node.agent.resume_place import mapping_of
from penstock.node.tenants.grant import read_grant

NAMES = ("a", "b", "c", "d")
ORDERS = st.lists(
    st.tuples(
        st.sampled_from(
            ["grant", "release", "release", "resume", "resume", "move", "resize", "revoke"]
        ),
        st.sampled_from(NAMES),
        st.integers(1, 10),
        st.integers(0, 1),
    ),
    min_size=5,
    max_size=25,
)


def carry_out(agent, order: str, name: str, size: int, device: int) -> None:
    if order == "grant":
        wanted = {"cores": size * 100, "memory": size * 10 * GIB, "devices": [str(device)]}
        agent.grant(request(name, **wanted))
    elif order == "release":
        agent.suspend(name, release_memory=True)
    elif order == "resume":
        agent.resume(name)
    elif order == "move":
        agent.resume(name, [str(device)])
    elif order == "resize":
        agent.resize(name, Resize(cores_permille=size * 100))
    else:
        agent.revoke(name, 0)


def check_books(node, agent) -> None:
    """The free figures are what the shares leave, by the grants on disk; nothing is negative."""
    devices = {one.uuid: one for one in agent.node().devices}
    memory = dict.fromkeys(devices, 0)
    cores = dict.fromkeys(devices, 0)
    for tenant in agent.tenants():
        grant = read_grant(node.state / "tenants" / tenant.name)
        assert [one.uuid for one in grant.devices] == [one.device_uuid for one in tenant.shares]
        if tenant.suspension == "released":
            continue
        for share in tenant.shares:
            memory[share.device_uuid] += share.memory_bytes
            cores[share.device_uuid] += share.cores_permille
    for uuid, device in devices.items():
        assert memory[uuid] <= device.memory_bytes
        assert cores[uuid] <= 1000
        assert device.free_memory_bytes == device.memory_bytes - memory[uuid]
        assert device.free_cores_permille == 1000 - cores[uuid]


@hypothesis.settings(
    max_examples=12, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@given(orders=ORDERS)
def test_shares_never_exceed_a_device(two_devices, orders):
    node = two_devices
    with node.client() as agent:
        for order, name, size, device in orders:
            with contextlib.suppress(PenstockError):
                carry_out(agent, order, name, size, device)
            for tenant in agent.tenants():
                if tenant.suspension in {"releasing", "restoring"}:
                    wanted = "released" if tenant.suspension == "releasing" else ""
                    settled(node, tenant.name, wanted)
            check_books(node, agent)
        for tenant in agent.tenants():
            agent.revoke(tenant.name, 0)


@given(st.data())
def test_a_mapping_has_each_device_of_the_node_once_on_both_sides(data):
    node = [f"GPU-{number}" for number in range(data.draw(st.integers(1, 8)))]
    count = data.draw(st.integers(1, len(node)))
    old = data.draw(st.permutations(node))[:count]
    new = data.draw(st.permutations(node))[:count]
    mapping = mapping_of(node, old, new)
    assert [mapping[uuid] for uuid in old] == new
    assert sorted(mapping) == sorted(mapping.values()) == node
    for uuid in set(node) - set(old) - set(new):
        assert mapping[uuid] == uuid


@pytest.mark.parametrize("count", [1, 3])
def test_a_tenant_without_processes_is_released_and_restored_at_once(node, count):
    with node.client() as agent:
        for number in range(count):
            agent.grant(request(f"t{number}", cores=100))
            agent.suspend(f"t{number}", release_memory=True)
        for number in range(count):
            assert settled(node, f"t{number}", "released").host_bytes == 0
            agent.resume(f"t{number}")
            settled(node, f"t{number}", "")
