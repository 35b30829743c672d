"""Every family of allocations is charged exactly, and back to nothing when it is given back."""

from __future__ import annotations

import pytest
from tests.memory.support import (
    context_memory,
    graph_memory,
    linear_memory,
    module_memory,
    physical_memory,
    pool_memory,
)

MIB = 1 << 20
LIMIT = 1024 * MIB


@pytest.mark.parametrize(
    "family",
    [
        linear_memory.linear,
        linear_memory.pitched,
        linear_memory.managed,
        linear_memory.host_memory,
        pool_memory.stream_ordered,
        pool_memory.stream_ordered_per_thread,
        pool_memory.own_pool,
        pool_memory.many_pools,
        pool_memory.pool_of_somebody_else,
        pool_memory.pool_kept_over_frees,
        pool_memory.pool_memory_freed_by_cumemfree,
        physical_memory.vmm_released_then_unmapped,
        physical_memory.vmm_unmapped_then_released,
        physical_memory.vmm_mapped_twice,
        physical_memory.vmm_unmapped_in_one_go,
        physical_memory.vmm_retained,
        physical_memory.vmm_imported_from_itself,
        physical_memory.vmm_on_a_device_not_granted,
        linear_memory.arrays,
        linear_memory.mipmapped_arrays,
        linear_memory.arrays_of_every_shape_and_format,
        linear_memory.arrays_that_cannot_be,
        graph_memory.graph_memory,
        graph_memory.captured_memory,
        context_memory.context_limits,
        module_memory.modules,
        module_memory.module_variables,
        module_memory.cubin_variables,
        module_memory.linked_modules,
        linear_memory.unknown_frees,
    ],
    ids=lambda family: family.__name__,
)
def test_a_family_is_charged_exactly_and_back_to_nothing(tenant, family):
    tenant.run(family)
    tenant.reap()
    assert tenant.charged() == 0


def test_a_size_beyond_any_device_is_refused_by_the_simulated_pool(tenant):
    tenant.run(pool_memory.pool_size_that_wraps, LD_PRELOAD="")


def test_memory_is_charged_to_the_device_where_it_lies(tenants):
    tenants(granted=(0, 1)).run(physical_memory.vmm_by_location)


@pytest.mark.parametrize(
    "scenario",
    [
        pool_memory.pool_over_the_limit,
        pool_memory.idle_pool_makes_room,
        pool_memory.frees_not_reached_in_other_streams,
        pool_memory.a_pool_with_room_serves_every_size,
        pool_memory.managed_pools_are_charged_wherever_they_are_preferred,
        pool_memory.managed_pools_of_the_driver_are_charged,
        pool_memory.a_managed_pool_made_without_a_context_is_charged,
        pool_memory.managed_pools_and_others_share_one_limit,
        pool_memory.pinned_pools_of_the_host_are_free,
        graph_memory.graph_memory_over_the_limit,
        graph_memory.what_is_freed_in_a_graph_is_used_again_in_it,
        graph_memory.branches_of_a_graph_may_run_at_once,
        graph_memory.memory_that_a_graph_leaves_allocated_is_used_by_no_other,
        graph_memory.graphs_in_one_stream_use_the_same_memory,
        graph_memory.a_refused_graph_counts_for_no_later_one,
        graph_memory.graphs_in_two_streams_have_memory_of_their_own,
        graph_memory.uploads_are_charged_where_they_happen,
        graph_memory.updated_graphs_are_charged_as_they_are_now,
        graph_memory.graphs_in_graphs_are_charged,
        linear_memory.view,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_pools_graphs_and_the_view_keep_to_the_limit(tenant, scenario):
    tenant.run(scenario, LIMIT)
    assert tenant.peak() <= LIMIT


@pytest.mark.parametrize(
    "scenario",
    [context_memory.primary_context, context_memory.reset_context, context_memory.several_contexts],
    ids=lambda scenario: scenario.__name__,
)
def test_contexts_are_charged_their_reserve_and_take_along_what_was_in_them(tenants, scenario):
    tenants(context_reserve_bytes=300 * MIB).run(scenario, 300 * MIB)


def test_a_context_that_does_not_fit_is_refused_as_out_of_memory(tenants):
    small = tenants(memory_bytes=200 * MIB, context_reserve_bytes=300 * MIB)
    small.run(context_memory.no_room_for_a_context)


def test_the_first_version_of_an_allocation_is_charged_or_leaves_nothing(tenant):
    with tenant.start(linear_memory.first_version) as program:
        _, errors = program.communicate(timeout=60)
    # 32-bit addresses: a driver may well refuse them; then nothing may stay charged.
    assert program.returncode == 0 or errors.startswith("unsupported"), errors
    assert program.returncode == 0 or errors.split()[-1] == "0"


def test_a_pool_that_nobody_knows_is_charged_though_the_driver_does_not_say_where_it_lies(tenant):
    tenant.run(pool_memory.pool_of_somebody_else, PENSTOCK_SIM_BEFORE_13="1")
    tenant.reap()
    assert tenant.charged() == 0
