"""Kills of the agent at any moment: afterwards the node's tenants equal the manager's list."""

from __future__ import annotations

import os
import random
import time

import pytest
from tests.pool_node.conftest import shares_of
from tests.pool_node.support.programs import start

NAMES = [f"app{number}" for number in range(6)]
KILLS = int(os.environ.get("PENSTOCK_NODE_KILLS", "10"))  # for each seed


def order_something(manager, random_, shares):
    """Changes one application in the list, so that all of them fit on the devices."""
    name = random_.choice(NAMES)
    part = manager.parts.get(name)
    if part is None:
        device = random_.randrange(2)
        manager.want(name, shares((device, random_.randint(1, 8), random_.randint(10, 160))))
        return
    word = random_.choice(["end", "suspend", "resume", "resize", "resize"])
    if word == "end":
        manager.end(name)
    elif word == "suspend":
        manager.want(name, suspended=True)
    elif word == "resume":
        manager.want(name, suspended=False)
    elif not part.suspended:
        share = part.shares[0]
        cores, memory = random_.randint(10, 160), random_.randint(1, 8) << 30
        manager.want(name, [(share.device_uuid, memory, cores)])


def differences(member, manager):
    """What is there compared with what is wanted, as far as they differ."""
    tenants = member.tenants()
    found = [name for name in tenants if name not in manager.parts]
    for name, part in manager.parts.items():
        tenant = tenants.get(name)
        if tenant is None:
            found.append(f"{name} is missing")
            continue
        has = [(s.device_uuid, s.memory_bytes, s.cores_permille) for s in tenant.shares]
        wants = [(s.device_uuid, s.memory_bytes, s.cores_permille) for s in part.shares]
        suspension = "released" if part.suspended else ""
        if tenant.suspension != suspension:
            found.append(f"{name} is {tenant.suspension or 'running'}")
        if has != wants and not part.suspended:  # a suspended one gets its shares at its resume
            found.append(f"{name} has {has} instead of {wants}")
    return found


def settled(manager):
    """Whether all that is wanted is there; drops what was suspended before it ever ran."""
    report = manager.report
    for part in report.parts if report.seen == manager.number else ():
        if part.state == "failed" and "not on this node any more" in part.reason:
            manager.end(part.application)
            return False
    states = {one.application: one for one in report.parts}
    return (
        report.seen == manager.number
        and states.keys() == manager.parts.keys()
        and all(
            states[name].state == ("suspended" if part.suspended else "running")
            and states[name].revision == part.revision
            for name, part in manager.parts.items()
        )
    )


@pytest.mark.parametrize("seed", range(2))
def test_after_kills_at_any_moment_the_tenants_equal_the_list(make_member, manager, seed):
    random_ = random.Random(seed)  # noqa: S311 - no secret
    member = make_member()
    manager.wait_joined()
    shares = shares_of(member)
    for _ in range(KILLS):
        for _ in range(random_.randint(1, 8)):
            order_something(manager, random_, shares)
        _pause(random_)
        member.kill()
        if random_.random() < 0.5:  # meanwhile the manager goes on
            order_something(manager, random_, shares)
        member.start()
    manager.wait(lambda: bool(manager._streams))
    manager.wait(lambda: settled(manager), 60)
    assert differences(member, manager) == []


def _pause(random_):
    time.sleep(random_.choice([0, 0.002, 0.01, 0.05, 0.2]))


def test_an_application_with_a_program_survives_kills_in_each_state(make_member, manager):
    member = make_member()
    manager.wait_joined()
    manager.want("app1", shares_of(member)((0, 8, 300)))
    manager.wait_for("app1", "running")
    program = start(member, "app1")
    manager.wait(lambda: manager.part("app1").processes == 1)
    for suspended in (True, False, True, False):
        manager.want("app1", suspended=suspended)
        member.kill()
        member.start()
        manager.wait_for("app1", "suspended" if suspended else "running", 60)
        assert program.poll() is None
    manager.end("app1")
    member.kill()
    member.start()
    manager.wait_for("app1", None, 60)
    assert program.wait(20) != 0
