"""Local memory of kernels, and what limits set aside, are charged before the device takes them."""

from __future__ import annotations

import subprocess
from functools import partial

import pytest
from tests.memory.support import local_memory

MIB = 1 << 20


@pytest.fixture
def on(on_two_devices):
    return partial(on_two_devices, room=4096 * MIB)


@pytest.mark.parametrize("kind", ["cubin", "ptx"])
def test_a_kernel_that_needs_more_local_memory_is_charged_the_difference(on, kind):
    tenant = on()
    tenant.run(local_memory.ascending, kind)
    tenant.reap()
    assert tenant.charged() == 0


@pytest.mark.parametrize(
    "program",
    [
        local_memory.descending,
        local_memory.every_way,
        local_memory.over_the_quota,
        local_memory.stack_limit,
        local_memory.graphs,
        local_memory.refused_graphs,
        local_memory.updated_graphs,
        local_memory.graphs_in_contexts,
        local_memory.conditional_graph,
        local_memory.by_threads_at_once,
        local_memory.at_a_full_quota,
    ],
    ids=lambda program: program.__name__,
)
def test_local_memory_is_charged_as_the_device_takes_it(on, program):
    tenant = on()
    tenant.run(program)
    tenant.reap()
    assert tenant.charged() == 0


def test_each_context_has_local_memory_of_its_own(on):
    on(contexts=2).run(local_memory.two_contexts)


@pytest.mark.parametrize(("profile", "major"), [("h200", 9), ("a100-80g", 8)])
def test_memory_that_the_device_runtime_sets_aside_is_charged(on, profile, major):
    on(profile=profile).run(local_memory.device_runtime, major)


def test_a_launch_that_the_driver_refuses_leaves_nothing_charged(on):
    on().run_beside_a_full_device(local_memory.beside_a_full_device)


def test_threads_that_set_a_limit_at_once_are_charged_for_the_one_that_holds(on, program):
    tenant = on(room=64 * 1024 * MIB)
    done = subprocess.run(
        [program("limits"), "20000"],
        env=tenant.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "0 0\n"), done.stderr
    tenant.reap()
    assert tenant.charged() == 0
