"""Copies between devices are metered as copies, not charged as compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.gate.support.programs import output_of

from penstock.bench.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

CASE = "copies_to_another_device_and_inside_of_one"
EACH_ROUND = 8
ROUNDS = 40


def test_copies_between_devices_are_the_copy_engines_work(program: Callable[[str], str]) -> None:
    with Stage("h200,2") as stage:
        tenant = stage.tenant("tenant", 100)
        child = stage.start(tenant, [CASE], program=program("peers"))
        assert child.stdin
        assert child.stdout
        seen = []
        for word in ("ready", "between", "inside"):
            assert child.stdout.readline() == f"{word}\n"
            device = tenant.usage.snapshot().devices[0]
            seen.append((device.copies, device.launches))
            child.stdin.write("\n")
            child.stdin.flush()
        output_of(child)
    (copies, launches), (between, still), (inside, more) = seen
    assert between - copies == EACH_ROUND * ROUNDS + 1
    assert still == launches
    assert inside == between
    assert more - still == EACH_ROUND * ROUNDS + 1
