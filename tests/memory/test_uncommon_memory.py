"""Rarer ways to hold memory are charged as exactly: multicast, sparse arrays, pools of others.

Elsewhere pools, arrays, IPC, imports, graphs and modules were not counted
(docs/faults-of-peers.md).
"""

from __future__ import annotations

import pytest
from tests.memory.support import uncommon_memory

MIB = 1 << 20


@pytest.mark.parametrize(
    "family",
    [
        uncommon_memory.multicast,
        uncommon_memory.multicast_outlives_handles,
        uncommon_memory.sparse_arrays,
        uncommon_memory.unmapped_reservation_in_use,
        uncommon_memory.free_of_charge,
    ],
    ids=lambda family: family.__name__,
)
def test_an_uncommon_kind_of_memory_is_charged_exactly(tenants, family):
    tenant = tenants(granted=(0, 1))
    tenant.run(family)
    tenant.reap()
    assert tenant.charged(0) == tenant.charged(1) == 0


def test_external_memory_is_charged_to_its_importer(tenant, tmp_path):
    tenant.run(uncommon_memory.external_memory, tmp_path / "outside")


@pytest.mark.parametrize("killed", [False, True], ids=["orderly", "killed"])
def test_a_pool_that_is_handed_out_is_charged_once_whoever_ends_first(tenant, tmp_path, killed):
    with tenant.start(uncommon_memory.pool_owner, tmp_path / "s") as owner:
        assert owner.stdout.readline() == "listening\n", owner.stderr.read()
        held = tenant.charged()
        with tenant.start(uncommon_memory.pool_user, tmp_path / "s", 0) as user:
            assert user.stdout.readline() == "mapped\n", user.stderr.read()
            assert tenant.charged() == held >= 40 * MIB
            if killed:
                owner.kill()
                owner.communicate()
                tenant.reap()
                assert tenant.charged() == held
            user.stdin.write("\n")
            user.stdin.flush()
            assert user.stdout.readline() == "destroyed\n", user.stderr.read()
            assert tenant.charged() == held
            _, errors = user.communicate("\n", timeout=60)
            assert user.returncode == 0, errors
        assert killed == (tenant.charged() == 0)
        if not killed:
            _, errors = owner.communicate("end\n", timeout=60)
            assert owner.returncode == 0, errors
    tenant.reap()
    assert tenant.charged() == 0
    assert tenant.peak() == held


def test_a_pool_of_another_tenant_is_charged_to_the_tenant_that_maps_its_memory(tenants, tmp_path):
    other, tenant = tenants(name="other"), tenants(name="user")
    with other.start(uncommon_memory.pool_owner, tmp_path / "s") as owner:
        assert owner.stdout.readline() == "listening\n"
        with tenant.start(uncommon_memory.pool_user, tmp_path / "s", 40 * MIB) as user:
            _, errors = user.communicate("\n\n", timeout=60)
        assert user.returncode == 0, errors
        owner.communicate("end\n", timeout=60)
    tenant.reap()
    assert tenant.charged() == 0


@pytest.mark.parametrize(
    "scenario", [uncommon_memory.retained_unseen, uncommon_memory.noticed_by_an_allocation]
)
def test_a_context_that_is_retained_unseen_is_charged_when_it_is_noticed(tenants, scenario):
    tenants(context_reserve_bytes=300 * MIB).run(scenario, 300 * MIB)


def test_a_context_that_is_retained_unseen_and_does_not_fit_lets_nothing_more_in(tenants):
    small = tenants(memory_bytes=200 * MIB, context_reserve_bytes=300 * MIB)
    small.run(uncommon_memory.unseen_and_too_much)
    assert small.peak() == 0
