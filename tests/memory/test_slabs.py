"""Small allocations are charged as the device holds them: in open slabs of 2 MiB.

What the device's own record says is compared with the ledger after every step.
"""

from __future__ import annotations

import subprocess
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.memory.support import slabs

from penstock_shim import simulator

MIB = 1 << 20
SLAB = 2 * MIB


def on_the_device(tenant, device: int = 0) -> int:
    """Bytes that living processes of the tenant hold by the device's own record."""
    with simulator.Machine(tenant.machine) as machine:
        records = machine.record(device)
    return sum(r.memory_bytes for r in records if r.tag == tenant.folder.name and r.alive)


@pytest.fixture
def small(tenants, machine):
    """A tenant whose context is charged as it is, with so much room beside it."""
    with simulator.Machine(machine) as opened:
        context_bytes = opened.devices()[0].context_bytes

    def make(room: int, **options):
        limit = context_bytes + room
        tenant = tenants(memory_bytes=limit, context_reserve_bytes=context_bytes, **options)
        return tenant, limit, context_bytes

    return make


@pytest.mark.parametrize("size", [16 << 10, 512 << 10])
def test_one_small_block_left_in_each_slab_does_not_make_room_for_more_than_the_quota(small, size):
    tenant, limit, context_bytes = small(100 * MIB)
    seen = []
    with tenant.start(slabs.one_left_in_each, size) as program:
        while line := program.stdout.readline():
            seen.append((int(line), on_the_device(tenant)))
            program.stdin.write("on\n")
            program.stdin.flush()
        _, errors = program.communicate(timeout=60)
    assert program.returncode == 0, errors
    assert len(seen) == 5
    assert all(charged == held <= limit for charged, held in seen), seen
    assert seen[3] == (limit, limit)  # nor for less
    assert seen[4] == (context_bytes, context_bytes)
    assert tenant.peak() <= limit


@pytest.mark.parametrize(
    ("scenario", "words", "most"),
    [
        (slabs.hidden_among_blocks, ["array"], 32 * MIB),
        (slabs.hidden_among_blocks, ["module"], 32 * MIB),
        (slabs.many_hidden, [], 0),
    ],
    ids=["arrays", "modules", "many"],
)
def test_arrays_and_modules_are_charged_no_less_than_the_slabs_that_they_hold(
    small, scenario, words, most
):
    """Nothing tells where they lie: the charge may be higher than the use, never lower."""
    tenant, limit, context_bytes = small(32 * MIB)
    with tenant.start(scenario, *words) as program:
        while line := program.stdout.readline():
            charged, held = int(line.split()[0]), on_the_device(tenant)
            assert held <= charged <= min(limit, held + most)
            if "nothing" in line:
                assert charged == held == context_bytes
            program.stdin.write("on\n")
            program.stdin.flush()
        _, errors = program.communicate(timeout=60)
    assert program.returncode == 0, errors
    assert tenant.peak() <= limit


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("a"), st.integers(1, 16 << 10)),
        st.tuples(st.just("a"), st.integers(1, 3 * MIB)),
        st.tuples(st.just("a"), st.sampled_from([512, 513, MIB, MIB + 1, SLAB])),
        st.tuples(st.just("f"), st.integers(0, 1000)),
    ),
    max_size=40,
)


def test_any_sequence_of_allocations_and_frees_is_charged_what_the_device_holds(small):
    tenant, limit, context_bytes = small(8 * MIB)
    with tenant.start(slabs.by_command) as program:

        def tell(*words: object) -> tuple[str, int]:
            program.stdin.write(" ".join(map(str, words)) + "\n")
            program.stdin.flush()
            answer, charged = program.stdout.readline().split()
            assert int(charged) == on_the_device(tenant)
            return answer, int(charged)

        @settings(
            max_examples=60,
            deadline=None,
            suppress_health_check=[HealthCheck.function_scoped_fixture],
        )
        @given(OPERATIONS)
        def check(operations):
            try:
                for command, number in operations:
                    answer, charged = tell(command, number)
                    taken = SLAB if number <= MIB else -(-number // SLAB) * SLAB
                    assert charged <= limit
                    assert answer == "ok" or charged + taken > limit
            finally:
                assert tell("c") == ("ok", context_bytes)

        check()
        _, errors = program.communicate(timeout=60)
    assert program.returncode == 0, errors
    assert tenant.peak() <= limit


@pytest.mark.parametrize("scenario", [slabs.room_in_open_slabs, slabs.managed_at_the_limit])
def test_at_the_limit_an_open_slab_with_room_serves_and_no_other_is_opened(tenants, scenario):
    tenant = tenants(memory_bytes=8 * MIB)
    tenant.run(scenario, 8 * MIB)
    assert tenant.peak() <= 8 * MIB


def test_threads_that_race_at_the_limit_are_charged_what_the_device_holds(
    program, small, own_machine
):
    tenant, limit, context_bytes = small(24 * MIB, machine=own_machine, name="brink")
    racers = subprocess.Popen(
        [program("brink"), "8", "3000"],
        env=tenant.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with racers:
        granted, refused = map(int, racers.stdout.readline().split())
        assert granted > 1000
        assert refused > 1000  # they did meet the limit
        assert tenant.charged() == on_the_device(tenant) > limit - 8 * MIB
        racers.stdin.write("on\n")
        racers.stdin.flush()
        assert racers.stdout.readline() == "free\n"
        assert tenant.charged() == on_the_device(tenant) == context_bytes
        _, errors = racers.communicate(timeout=60)
    assert racers.returncode == 0, errors
    assert tenant.peak() <= limit


def test_slab_memory_of_a_killed_process_comes_back(small, program):
    tenant, limit, _ = small(24 * MIB, name="killed")
    for _ in range(3):
        racers = subprocess.Popen(
            [program("brink"), "4", "100000000"],
            env=tenant.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with racers:
            deadline = time.monotonic() + 20
            while tenant.charged() < limit and time.monotonic() < deadline:
                pass
            racers.kill()
        tenant.reap()
        assert tenant.charged() == 0
    assert tenant.peak() <= limit


def test_slabs_go_with_their_context_on_their_own_device(tenants, machine):
    with simulator.Machine(machine) as opened:
        context_bytes = opened.devices()[0].context_bytes
    tenant = tenants(granted=(0, 1), context_reserve_bytes=context_bytes)
    with tenant.start(slabs.contexts_and_devices, context_bytes) as program:
        while line := program.stdout.readline():
            assert list(map(int, line.split())) == [on_the_device(tenant, d) for d in (0, 1)]
            program.stdin.write("on\n")
            program.stdin.flush()
        _, errors = program.communicate(timeout=60)
    assert program.returncode == 0, errors


def test_a_forked_child_gives_back_nothing_of_its_parents_slabs(tenant):
    tenant.run(slabs.forked)
