"""Time from an order of the pool until its effect."""

from __future__ import annotations

import time

import pytest

from penstock_shim.pages import read_quota

pytestmark = pytest.mark.timed
VICTIMS = 10


def test_victims_stop_launching_within_100_ms_of_the_order(member, manager, shares):
    names = [f"app{number}" for number in range(VICTIMS)]
    for number, name in enumerate(names):
        manager.want(name, shares((number % 2, 4, 100)), send=False)
    manager.send()
    for name in names:
        manager.wait_for(name, "running")
    pages = [member.state / "tenants" / name / "quota" for name in names]
    for name in names:
        manager.want(name, suspended=True, send=False)
    began = time.monotonic()
    manager.send()
    while not all(read_quota(page).limits.suspended for page in pages):
        assert time.monotonic() - began < 10
        time.sleep(0.001)
    assert time.monotonic() - began < 0.1
