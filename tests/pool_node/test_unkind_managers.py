"""Managers that flood, stop reading, vanish or send nonsense: the agent goes on and stays small."""

from __future__ import annotations

import os
import time

import pytest
from tests.agent.conftest import wait_until

from penstock_api.v1 import pool_pb2


def memory_bytes(member):
    with open(f"/proc/{member.process.pid}/statm") as figures:  # noqa: PTH123
        return int(figures.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_flood_of_lists_ends_in_the_last_one_and_costs_no_memory(member, manager, shares):
    manager.want("app1", shares((0, 8, 300)))
    manager.wait_for("app1", "running")
    before = memory_bytes(member)
    many = [
        pool_pb2.PartOrder(
            application=f"no-{number}",
            revision=1,
            suspended=True,
            shares=[pool_pb2.PartShare(device_uuid="x", memory_bytes=1, cores_permille=1)],
        )
        for number in range(500)
    ]
    for _ in range(200):
        manager.send(manager.orders(parts=[*manager.parts.values(), *many]))
    manager.want("app2", shares((1, 8, 300)))
    manager.wait_for("app2", "running", 60)
    assert memory_bytes(member) - before < 128 << 20
    assert sorted(member.tenants()) == ["app1", "app2"]


@pytest.mark.parametrize(
    "fields",
    [
        {"pool": ""},
        {"parts": [pool_pb2.PartOrder(application="../../etc", revision=1)]},
        {"parts": [pool_pb2.PartOrder(application="app1", revision=1)]},
        {
            "parts": [
                pool_pb2.PartOrder(
                    application="app1",
                    shares=[pool_pb2.PartShare(device_uuid="x", memory_bytes=1)],
                )
            ]
        },
        {"parts": [pool_pb2.PartOrder(application=f"app{number}") for number in range(5000)]},
        {"pool": "p" * 1000, "term": (1 << 64) - 1},
    ],
    ids=["no pool", "a path", "no shares", "no cores", "too many", "no fence"],
)
def test_a_list_that_cannot_be_meant_changes_nothing(member, manager, shares, fields):
    manager.want("app1", shares((0, 8, 300)))
    manager.wait_for("app1", "running")
    joins = manager.joins
    manager.send(manager.orders(**fields))
    wait_until(lambda: manager.joins > joins)  # it leaves such a manager, and dials again
    assert list(member.tenants()) == ["app1"]
    manager.want("app2", shares((1, 8, 300)))
    manager.wait_for("app2", "running")


def test_a_manager_that_stops_reading_holds_nothing_up(member, manager, shares):
    manager.want("app1", shares((0, 8, 300)))
    manager.wait_for("app1", "running")
    manager.reads = False
    before = memory_bytes(member)
    for number in range(20):
        manager.want("app1", shares((0, 8, 300 + number)))
        wait_until(
            lambda number=number: member.tenants()["app1"].shares[0].cores_permille == 300 + number
        )
    time.sleep(0.5)
    assert memory_bytes(member) - before < 64 << 20
    manager.reads = True
    manager.wait_for("app1", "running")


def test_a_manager_that_vanishes_in_the_middle_finds_everything_as_it_was(member, manager, shares):
    for number in range(6):
        manager.want(f"app{number}", shares((number % 2, 4, 100)), send=False)
    manager.send()
    manager.stop()
    manager.reports.clear()
    manager.start()
    for number in range(6):
        manager.wait_for(f"app{number}", "running")
    assert len(member.tenants()) == 6


def test_a_hundred_applications_are_granted_and_ended_together(member, manager, shares):
    for number in range(100):
        manager.want(f"app{number}", shares((number % 2, 0.5, 10)), send=False)
    manager.send()
    for number in range(100):
        manager.wait_for(f"app{number}", "running", 60)
    manager.parts.clear()
    manager.send()
    manager.wait(lambda: manager.report.seen == manager.number and not manager.report.parts, 60)
    assert member.tenants() == {}
