"""Memory in a context is given back with it, however it ends, and the device's record agrees."""

from __future__ import annotations

import pytest
from tests.memory.support import context_ends

from penstock_shim import simulator

MIB = 1 << 20


@pytest.mark.parametrize(
    "program",
    [
        context_ends.attached,
        context_ends.limits,
        context_ends.module_code,
        context_ends.library_code,
        context_ends.library_before_contexts,
        context_ends.library_over_the_limit,
        context_ends.green,
    ],
    ids=lambda program: program.__name__,
)
def test_nothing_of_a_context_that_ended_stays_charged(tenants, machine, program):
    with simulator.Machine(machine) as opened:
        context_bytes = opened.devices()[0].context_bytes
    tenant = tenants(
        memory_bytes=4 * context_bytes, context_reserve_bytes=context_bytes, granted=(0, 1)
    )
    tenant.run(program)
    tenant.reap()
    assert tenant.charged(0) == tenant.charged(1) == 0
