"""The ledger and the device agree: what is charged is what the device's own record says."""

from __future__ import annotations

import pytest
from tests.memory.support import scenarios

from penstock_shim import simulator

MIB = 1 << 20


def on_the_device(tenant) -> int:
    """Bytes that living processes of the tenant hold by the device's own record."""
    with simulator.Machine(tenant.machine) as machine:
        records = machine.record(0)
    return sum(r.memory_bytes for r in records if r.tag == tenant.folder.name and r.alive)


@pytest.mark.parametrize("seed", range(4))
def test_the_charge_of_a_random_mix_is_what_the_device_holds(tenants, machine, seed):
    with simulator.Machine(machine) as opened:
        context_bytes = opened.devices()[0].context_bytes
    limit = context_bytes + 600 * MIB
    tenant = tenants(name=f"mix-{seed}", memory_bytes=limit, context_reserve_bytes=context_bytes)
    seen = []
    with tenant.start(scenarios.random_mix, seed, 150) as program:
        while line := program.stdout.readline():
            assert int(line) == on_the_device(tenant)
            seen.append(int(line))
            program.stdin.write("on\n")
            program.stdin.flush()
        _, errors = program.communicate(timeout=60)
    assert program.returncode == 0, errors
    assert len(seen) == 16
    assert max(seen) > context_bytes + 100 * MIB
    assert seen[-1] == context_bytes
    assert tenant.peak() <= limit


def test_a_reservation_for_a_call_that_the_driver_refuses_is_given_back(tenants, tmp_path):
    path = tmp_path / "machine"
    simulator.create_machine(path, "h200").close()
    tenant = tenants(machine=path)
    with tenant.start(scenarios.every_call_fails) as program:
        assert program.stdout.readline() == "ready\n"
        with simulator.Machine(path) as machine:
            machine.inject("out-of-memory")
        _, errors = program.communicate("on\n", timeout=60)
    assert program.returncode == 0, errors
    assert tenant.refusals() == 0
