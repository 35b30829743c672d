"""Look after look: what is as it was is taken as it was, and nothing is lost by that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.node.enforcement.measure import BusyTime, DevicePoller, User
from penstock.node.enforcement.members import Members
from penstock.node.enforcement.process import Process

from .conftest import expect

S = 1_000_000_000
PROCESS = Process(1, 1)


@given(st.lists(st.tuples(st.integers(1, 2 * S), st.sampled_from([0, 0, 0, S // 4, S]))))
def test_who_rests_is_known_like_one_who_was_looked_at(looks):
    looked, rested = BusyTime(), BusyTime()
    at_ns = busy_ns = 0
    for passed_ns, gained_ns in looks:
        at_ns, busy_ns = at_ns + passed_ns, busy_ns + gained_ns
        users = [User(PROCESS, 0, busy_ns, None)]
        looked.add(at_ns, users, {}, 300)
        if rested.samples and gained_ns == 0:
            rested.add_unchanged(at_ns, 300)
        else:
            rested.add(at_ns, users, {}, 300)
        assert rested.window() == looked.window()
        assert rested.lately() == looked.lately()
        assert rested.busy_ns == looked.busy_ns


def holds(guest, mib):
    program = guest.program("alloc", mib)
    expect(program, "alloc 0")
    expect(program, "ready")
    return program


def test_only_what_is_new_on_a_device_is_put_together_anew(node):
    still, other = node.tenant("still"), node.tenant("other")
    holds(still, 100)
    members = Members()
    poller = DevicePoller(node.source, members)
    uuid = node.device.uuid

    def look():
        members.scan(0, [still.subject, other.subject])
        return poller.poll()[uuid]

    first = look()
    users = first.users["still"]
    at_ns = first.at_ns
    second = look()
    assert second.users["still"] is users
    assert second.at_ns > at_ns
    program = holds(other, 200)
    third = look()
    assert third.users["still"] is users
    told = {one.pid: one for one in node.source.processes(node.device)}
    for user in (*third.users["still"], *third.users["other"]):
        assert user.memory_bytes == told[user.process.pid].memory_bytes > 100 << 20
        assert user.busy_ns == told[user.process.pid].busy_ns
    program.kill()
    program.wait()
    assert "other" not in look().users
