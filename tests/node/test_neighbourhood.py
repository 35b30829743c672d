"""A round over many tenants: idle ones cost one look, and nothing that matters is missed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from penstock.node.admission.admit import Request, admit
from penstock.node.supervision.pid_namespaces import NamespacedProcesses
from penstock.node.supervision.supervisor import Supervisor
from penstock.node.supervision.tenant_table import TenantTable
from penstock.node.tenants.environment import program_environment, tenant_variables
from penstock.node.tenants.grant import read_grant, write_grant
from penstock.node.tenants.simulated_machines import simulated_machine
from penstock.node.tenants.state import State
from penstock_shim import paths
from penstock_shim.pages import PageError, read_quota, read_usage, survive_lost_pages

REAP_PERIOD_NS = 2_000_000_000
PROGRAM = Path(__file__).parents[1] / "enforce" / "support" / "gpu_program.py"


class Node:
    """Tenants of one state directory, looked after together as an agent does it."""

    def __init__(self, folder):
        self.state = State.open(folder)
        self.source = simulated_machine(self.state, "h200")
        self.tenant_table = TenantTable(self.state, NamespacedProcesses(scan_period_ns=10**9))
        self.supervisors = {}
        self.locks = {}
        self.programs = []

    def tenant(self, name, *, mode="strict", cores_permille=100):
        request = Request(("x",), [2 << 30], [cores_permille], name=name, mode=mode)
        made = admit(self.state, request, self.source)
        self.locks[name] = made.lock  # else the next admission takes it for one that has ended
        self.supervisors[name] = Supervisor(
            made.tenant, self.tenant_table, reap_period_ns=REAP_PERIOD_NS
        )
        return made.tenant

    def end(self, name):
        supervisor = self.supervisors.pop(name)
        supervisor.tenant.remove()
        supervisor.close()
        os.close(self.locks.pop(name))

    def start(self, tenant, *command, **more):
        variables = tenant_variables(self.state, tenant, tenant.grant(), self.source)
        program = subprocess.Popen(
            command, env={**program_environment(variables), **more},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.programs.append(program)
        return program

    def hold(self, tenant):
        """A process of the tenant with a context."""
        program = self.start(tenant, str(paths.workload_path("penstock-start")), "--hold")
        json.loads(program.stdout.readline())
        return program

    def round(self):
        now_ns = time.monotonic_ns()
        self.tenant_table.sample(now_ns)
        for supervisor in list(self.supervisors.values()):
            supervisor.supervise(now_ns)

    def rounds_until(self, condition, within_s=20):
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline
            self.round()
            time.sleep(0.02)

    def near(self, tenant):
        return self.tenant_table.of(tenant.directory)

    def close(self):
        for program in self.programs:
            program.kill()
            program.communicate()
        for name in list(self.supervisors):
            self.end(name)
        self.tenant_table.close()


@pytest.fixture
def node(tmp_path):
    survive_lost_pages()
    made = Node(tmp_path)
    yield made
    made.close()


def test_the_heartbeat_of_a_tenant_that_does_nothing_goes_on(node):
    tenant = node.tenant("t")
    node.round()
    before = read_quota(tenant.quota_page).heartbeat_ns
    node.round()
    assert not node.near(tenant).has_changed
    assert read_quota(tenant.quota_page).heartbeat_ns > before


def test_a_process_that_comes_or_goes_is_noticed_and_what_it_held_comes_back(node):
    idle, tenant = node.tenant("idle"), node.tenant("t")
    program = node.hold(tenant)
    node.round()
    assert (node.near(tenant).part.slots, node.near(idle).part.slots) == (1, 0)
    assert len(node.supervisors["t"].newest().slots) == 1
    assert node.supervisors["t"].newest().devices[0].total_bytes > 0
    program.kill()
    program.wait()
    node.rounds_until(lambda: read_usage(tenant.usage_page).devices[0].total_bytes == 0)
    node.round()
    assert node.supervisors["t"].newest().slots == ()


def test_a_zombie_gives_back_what_it_held_before_its_parent_takes_notice(node):
    tenant = node.tenant("t")
    program = node.hold(tenant)
    program.kill()  # and nobody waits for it
    node.rounds_until(lambda: read_usage(tenant.usage_page).devices[0].total_bytes == 0)


def test_a_page_that_was_scribbled_over_is_a_problem_of_its_tenant_alone(node):
    hurt, whole = node.tenant("hurt"), node.tenant("whole")
    node.hold(whole)
    node.round()
    first = hurt.usage_page.read_bytes()[:64]
    with hurt.usage_page.open("r+b") as page:
        page.write(b"\xff" * 64)
    node.round()
    assert node.supervisors["hurt"].page_problem
    assert node.supervisors["whole"].page_problem is None
    assert len(node.supervisors["whole"].newest().slots) == 1
    with hurt.usage_page.open("r+b") as page:
        page.write(first)
    node.round()
    node.round()
    assert node.supervisors["hurt"].newest() is not None
    assert node.near(hurt).problem is None


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_a_truncated_page_ends_no_round(node, size):
    tenant, other = node.tenant("t"), node.tenant("other")
    node.round()
    os.truncate(tenant.usage_page, size)
    node.rounds_until(lambda: node.supervisors["t"].page_problem)
    before = read_quota(other.quota_page).heartbeat_ns
    node.round()
    assert read_quota(other.quota_page).heartbeat_ns > before


def test_a_name_that_is_given_again_between_two_rounds_means_the_new_tenant(node):
    old = node.tenant("t")
    node.hold(old).kill()
    node.round()
    inode = old.usage_page.stat().st_ino
    keep = node.state.tenants / "kept"  # so that the inode is not given again
    keep.mkdir()
    os.link(old.usage_page, keep / "usage")
    node.end("t")
    shutil.rmtree(keep)
    new = node.tenant("t")
    node.hold(new)
    node.round()
    assert new.usage_page.stat().st_ino != inode or node.near(new).part.slots == 1
    assert len(node.supervisors["t"].newest().slots) == 1


def test_a_grant_that_somebody_else_replaced_is_taken_in(node):
    tenant = node.tenant("t")
    node.round()
    grant = read_grant(tenant.directory)
    share = dataclasses.replace(grant.devices[0], cores_permille=333)
    write_grant(tenant.directory, dataclasses.replace(grant, devices=(share,)))

    def granted_permille():
        return read_quota(tenant.quota_page).limits.devices[0].cores_permille

    node.rounds_until(lambda: granted_permille() == 333)


def test_tenants_that_end_while_others_are_looked_at_take_nothing_with_them(node):
    """Pages are closed in one thread while another renews heartbeats in them."""
    staying = node.tenant("staying")
    stop, rounds = threading.Event(), []

    def supervise(supervisor):
        with contextlib.suppress(OSError, PageError):  # it has ended
            supervisor.supervise(time.monotonic_ns())

    def go_rounds():
        while not stop.is_set():
            node.tenant_table.sample(time.monotonic_ns())
            for supervisor in list(node.supervisors.values()):
                supervise(supervisor)
            rounds.append(time.monotonic_ns())

    thread = threading.Thread(target=go_rounds)
    thread.start()
    try:
        for number in range(60):
            tenant = node.tenant(f"t{number}")
            supervise(node.supervisors[tenant.name])
            node.end(tenant.name)
        last = len(rounds)
        while thread.is_alive() and len(rounds) <= last:
            time.sleep(0.001)
    finally:
        stop.set()
        thread.join()
    assert len(rounds) > last
    before = read_quota(staying.quota_page).heartbeat_ns
    node.round()
    assert read_quota(staying.quota_page).heartbeat_ns > before


MANY = 66  # more than may each be looked at in full in every round
ASLEEP_AFTER = 40  # rounds


class ManyAsleep:
    """So many tenants that have done nothing for a while, four of them to play with."""

    def __init__(self, node):
        self.node = node
        self.tenants = [node.tenant(f"t{number}", cores_permille=5) for number in range(MANY)]
        self.holder, self.worker, self.idle, self.hurt = self.tenants[:4]
        node.round()

    def fall_asleep(self):
        for _ in range(ASLEEP_AFTER):
            self.node.round()
        assert not self.node.tenant_table.concerned

    def is_noticed(self, condition):
        """In two rounds, a fifth of a second of an agent's."""
        self.node.round()
        self.node.round()
        return condition()


def test_of_many_tenants_asleep_all_that_matters_is_noticed_in_two_rounds(node):
    """Heartbeats go on; deaths, zombies, new processes, damage and work show."""
    many = ManyAsleep(node)
    processes = [node.hold(many.holder) for _ in range(2)]
    launcher = node.start(
        many.worker, sys.executable, str(PROGRAM), "alloc", "1", "wait", "3", "load", "4",
        PENSTOCK_SIM_KERNELS="*spin=param0",
    )  # fmt: skip
    node.rounds_until(lambda: node.near(many.worker).part.slots == 1)
    many.fall_asleep()
    before = {one: read_quota(one.quota_page).heartbeat_ns for one in many.tenants}
    held_bytes = read_usage(many.holder.usage_page).devices[0].total_bytes

    def used_bytes():
        return read_usage(many.holder.usage_page).devices[0].total_bytes

    processes[0].kill()
    processes[0].wait()
    assert many.is_noticed(lambda: used_bytes() == held_bytes // 2)
    assert all(read_quota(one.quota_page).heartbeat_ns > before[one] for one in many.tenants)
    many.fall_asleep()
    processes[1].kill()
    os.waitid(os.P_PID, processes[1].pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    assert many.is_noticed(lambda: used_bytes() == 0)
    node.hold(many.idle)
    assert many.is_noticed(lambda: node.near(many.idle).part.slots == 1)
    os.truncate(many.hurt.usage_page, 100)
    assert many.is_noticed(lambda: node.supervisors[many.hurt.name].page_problem)
    for _ in range(ASLEEP_AFTER):
        node.round()
    assert launcher.poll() is None
    assert not node.near(many.worker).part.active
    deadline = time.monotonic() + 20
    while read_usage(many.worker.usage_page).devices[0].launches == 0:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert many.is_noticed(lambda: node.near(many.worker).part.active)


def test_descriptors_of_processes_go_with_those(node):
    """Of a process that ended, a tenant that ended, a page that is lost nothing stays open."""

    def pidfds():
        found = []
        for entry in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):  # the listing's own
                found.append("pidfd" in str(entry.readlink()))
        return sum(found)

    tenants = [node.tenant(name, cores_permille=5) for name in ("kept", "ended", "hurt")]
    programs = [node.hold(tenant) for tenant in tenants for _ in range(2)]
    before = pidfds()
    node.rounds_until(lambda: pidfds() == before + len(programs))
    programs[0].kill()
    node.rounds_until(lambda: pidfds() == before + 5)
    for program in programs[2:4]:
        program.kill()
        program.wait()
    node.end("ended")
    node.rounds_until(lambda: pidfds() == before + 3)
    os.truncate(tenants[2].usage_page, 0)
    node.rounds_until(lambda: pidfds() == before + 1)
