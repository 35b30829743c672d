"""Two devices with quotas of their own: each call is charged where its memory lies, to the byte."""

from __future__ import annotations

import pytest
from tests.memory.support import other_device, scenarios

from penstock_shim import simulator

MIB = 1 << 20
HERE, THERE = 0, 1


@pytest.fixture
def uneven(tenants, machine):
    """256 MiB on device 0 and 96 MiB on device 1, each beside a context."""
    with simulator.Machine(machine) as opened:
        context_bytes = [device.context_bytes for device in opened.devices()]
    assert len(set(context_bytes)) == 1
    tenant = tenants(
        memory_bytes=256 * MIB + context_bytes[0],
        context_reserve_bytes=context_bytes[0],
        granted=(HERE, THERE),
    )
    tenant.resize(other_device.ROOM + context_bytes[0], THERE)
    return tenant


@pytest.mark.parametrize(
    "family",
    [
        other_device.linear_memory,
        other_device.physical_memory,
        other_device.pools,
        other_device.graph_memory,
    ],
    ids=lambda family: family.__name__,
)
def test_memory_of_another_device_is_charged_there_up_to_that_devices_quota(uneven, family):
    uneven.run(family)
    assert uneven.refusals(HERE) == 0
    assert uneven.refusals(THERE) > 0
    uneven.reap()
    assert uneven.charged(HERE) == uneven.charged(THERE) == 0


def test_memory_that_another_process_handed_out_is_charged_where_it_lies(tenants, uneven):
    owner_tenant = tenants(name="owner", granted=(HERE, THERE))
    with owner_tenant.start(scenarios.ipc_owner, THERE) as owner:
        uneven.run(other_device.ipc_user, owner.stdout.readline().strip())
        owner.communicate("end\n", timeout=60)
