"""Local memory of kernels, and what limits set aside, are charged before the device takes them."""

from __future__ import annotations

import subprocess

import local_memory
import pytest

from penstock_shim import simulator

MIB = 1 << 20


@pytest.fixture
def on(tenants, tmp_path):
    """A tenant on a machine of two such devices, with `room` beside a context on each."""

    def make(room: int = 4096 * MIB, contexts: int = 1, profile: str = "h200"):
        path = tmp_path / f"{profile}-machine"
        simulator.create_machine(path, f"{profile},2").close()
        with simulator.Machine(path) as machine:
            context_bytes = machine.devices()[0].context_bytes
        return tenants(
            machine=path,
            memory_bytes=room + contexts * context_bytes,
            context_reserve_bytes=context_bytes,
            granted=(0, 1),
        )

    return make


@pytest.mark.parametrize("kind", ["cubin", "ptx"])
def test_a_needier_kernel_is_charged_what_it_needs_more(on, kind):
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
def test_what_the_device_runtime_sets_aside_is_charged(on, profile, major):
    on(profile=profile).run(local_memory.device_runtime, major)


def test_a_launch_that_the_driver_refuses_leaves_nothing_charged(on):
    tenant = on()
    with tenant.start(local_memory.beside_a_full_device) as program:
        assert program.stdout.readline() == "ready\n"
        with simulator.Machine(tenant.machine) as machine:
            machine.inject("out-of-memory")
            program.stdin.write("on\n")
            program.stdin.flush()
            line = program.stdout.readline()
            machine.lift()
        _, errors = program.communicate("on\n", timeout=60)
    assert line == "again\n", errors
    assert program.returncode == 0, errors


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
