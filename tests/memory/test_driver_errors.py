"""A call that the driver refuses gets the driver's own code in a tenant, over the quota as well."""

from __future__ import annotations

import pytest
from tests.memory.support import driver_errors

MIB = 1 << 20


@pytest.mark.parametrize("program", [driver_errors.all_of_them, driver_errors.without_a_context])
def test_the_codes_are_those_of_the_same_program_without_the_shim(tenants, program):
    tenant = tenants(memory_bytes=8 * MIB)
    bare = tenant.run(program, LD_PRELOAD="")
    assert "create on device 77 101" in bare or "info" in bare
    assert tenant.run(program).splitlines() == bare.splitlines()
    tenant.reap()
    assert tenant.charged() == 0


def test_work_on_a_destroyed_context_gets_the_driver_s_code_and_the_next_one_takes_work(tenants):
    tenant = tenants(memory_bytes=1024 * MIB)
    bare = tenant.run(driver_errors.on_a_destroyed_context, LD_PRELOAD="")
    assert bare.count("launch again 0") == bare.count("memset again 0") == 2
    assert tenant.run(driver_errors.on_a_destroyed_context).splitlines() == bare.splitlines()
