"""Several processes and threads of a tenant at once, killed, forked, shrunk."""

from __future__ import annotations

import random
import subprocess
import time
from typing import TYPE_CHECKING

from tests.memory.support import scenarios

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
OUT_OF_MEMORY, NOT_INITIALIZED = 2, 3


def launch(program: Path, tenant, *words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [program, *map(str, words)],
        env=tenant.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    with process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def test_racing_processes_never_exceed_the_limit_by_a_byte(program, tenants):
    limit = 64 * MIB
    tenant = tenants(memory_bytes=limit)
    racers = [launch(program("racer"), tenant, 10_000, seed, 2048) for seed in range(8)]
    answers = [list(map(int, finish(racer).split())) for racer in racers]
    granted, refused = (sum(column) for column in zip(*answers, strict=True))
    assert granted + refused == 80_000
    assert granted > 1000
    assert refused > 1000  # they did meet the limit
    assert limit - 4 * MIB < tenant.peak() <= limit
    assert tenant.charged() == 0
    assert tenant.refusals() == refused


def test_memory_stays_charged_where_threads_map_it_while_others_give_it_up(program, tenant):
    assert finish(launch(program("crossing"), tenant, 20_000)) == "0 0\n"


def test_racing_processes_together_hold_exactly_the_limit(program, tenants):
    tenant = tenants(memory_bytes=100 * MIB)
    holders = [launch(program("racer"), tenant, 0, 0, 1024, "hold") for _ in range(8)]
    held = [int(holder.stdout.readline()) for holder in holders]
    assert sum(held) == 100
    assert tenant.charged() == 100 * MIB
    for holder in holders:
        finish(holder)
    tenant.reap()
    assert tenant.charged() == 0


def test_processes_killed_at_any_moment_leave_nothing_charged(program, tenants):
    tenant = tenants(memory_bytes=64 * MIB)
    dice = random.Random(7)  # noqa: S311  # when to kill is no secret
    for _ in range(25):
        racers = [launch(program("racer"), tenant, 10**9, n, 2048) for n in range(4)]
        deadline = time.monotonic() + 20
        while tenant.charged() == 0 and time.monotonic() < deadline:
            pass  # until some of them are at work
        select_for = time.monotonic() + dice.random() / 20
        while time.monotonic() < select_for:
            pass
        for racer in racers:
            racer.kill()
            racer.communicate()
        tenant.reap()
        assert tenant.charged() == 0
    assert tenant.peak() <= 64 * MIB


def test_a_killed_process_makes_room_for_the_next_without_any_agent(program, tenants):
    tenant = tenants(memory_bytes=100 * MIB)
    for _ in range(5):
        holder = launch(program("racer"), tenant, 0, 0, 1024, "hold")
        assert int(holder.stdout.readline()) == 100
        holder.kill()
        holder.communicate()


def test_memory_shrunk_below_its_use_refuses_new_and_breaks_nothing(program, tenants):
    tenant = tenants(memory_bytes=100 * MIB)
    holder = launch(program("racer"), tenant, 0, 0, 1024, "hold")
    assert int(holder.stdout.readline()) == 100
    tenant.resize(40 * MIB)
    other = launch(program("racer"), tenant, 0, 0, 1024, "hold")
    assert int(other.stdout.readline()) == 0
    tenant.resize(130 * MIB)
    third = launch(program("racer"), tenant, 0, 0, 1024, "hold")
    assert int(third.stdout.readline()) == 30
    for process in (holder, other, third):
        finish(process)


def test_threads_that_free_each_others_memory_leave_nothing_charged(program, tenant):
    process = launch(program("threads"), tenant, 8, 3000)
    assert process.stdout.readline() == "done\n"
    assert tenant.charged() == 0
    finish(process)


def test_a_child_forked_before_cuda_has_a_slot_and_charges_of_its_own(program, tenant):
    process = launch(program("forker"), tenant, "before")
    assert process.stdout.readline() == "0 0\n"
    tenant.reap()
    assert tenant.charged() == 4 * MIB  # the parent's; the child has ended
    finish(process)


def test_a_child_forked_after_cuda_fails_as_without_the_shim_and_gives_nothing_back(
    program, tenant
):
    environment = tenant.environment()
    del environment["LD_PRELOAD"]
    bare = subprocess.run(
        [program("forker"), "after"],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    process = launch(program("forker"), tenant, "after")
    assert process.stdout.readline() == bare == f"{NOT_INITIALIZED} 0\n"
    assert tenant.charged() == 0
    finish(process)


def test_a_copy_of_the_driver_in_another_namespace_is_charged_as_well(tenant):
    tenant.run(scenarios.in_another_namespace)
    tenant.reap()
    assert tenant.charged() == 0


def test_the_view_never_promises_more_while_another_process_starts(tenants):
    tenant = tenants(context_reserve_bytes=200 * MIB)
    with tenant.start(scenarios.watch_free) as watcher:
        assert watcher.stdout.readline() == "watching\n"
        others = [tenant.start(scenarios.linear_kept) for _ in range(3)]
        for other in others:
            assert other.stdout.readline() == "kept\n"
        out, err = watcher.communicate("stop\n", timeout=60)
    for other in others:
        other.communicate("end\n", timeout=60)
    assert watcher.returncode == 0, err
    assert out.split() == ["0"]
