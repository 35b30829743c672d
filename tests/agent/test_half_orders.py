"""Requests that fail or are killed half-way: nothing is lost or granted twice; a retry works."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.agent.conftest import GIB, Node, request, wait_until
from tests.agent.support.programs import environment_for

from penstock.model import PenstockError
from penstock.node.admission.resize import Resize
from penstock_shim.pages import read_quota

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="offers containers, mounts: needs root")
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); "


def refused(order) -> PenstockError:
    with pytest.raises(PenstockError) as failed:
        order()
    return failed.value


def deaf_program(node: Node, granted) -> subprocess.Popen[str]:
    """A process of the tenant that ignores SIGTERM and does not use the device."""
    environment = environment_for(granted)
    environment.pop("LD_PRELOAD", None)
    program = node.launch_in(environment, sys.executable, "-c", DEAF + "time.sleep(600)")
    assert program.stdout.readline() == "\n"
    return program


def revoke_patiently(node: Node) -> None:
    with node.client() as agent, contextlib.suppress(PenstockError):  # it is killed meanwhile
        agent.revoke("t", 600 * 10**9)


def free_permille(agent) -> int:
    return agent.node().devices[0].free_cores_permille


@needs_root
def test_a_grant_that_is_asked_again_and_cannot_be_offered_leaves_the_tenant_as_it_is(node):
    """A kubelet repeats the request after each of its restarts, also while a disk is missing."""
    shared = request("pod", cores=900, container=True, request_id="claim")
    shims = Path(f"{node.state}-shim")
    with node.client() as agent:
        before = agent.grant(shared)
        shims.rename(aside := shims.with_name("aside"))
        error = refused(lambda: agent.grant(shared))
        assert error.reason == "unavailable", "kube node asks again"
        assert "is missing" in error.why
        assert [one.name for one in agent.tenants()] == ["pod"]
        assert free_permille(agent) == 100
        aside.rename(shims)
        assert agent.grant(shared).cdi_devices == before.cdi_devices


@needs_root
def test_a_new_tenant_that_cannot_be_offered_is_taken_back_and_granted_when_asked_again(node):
    specs = Path(f"{node.state}-cdi")
    specs.touch()
    one = request("pod", container=True, request_id="claim")
    with node.client() as agent:
        assert refused(lambda: agent.grant(one)).reason == "unavailable"
        assert agent.tenants() == []
        assert free_permille(agent) == 1000
        assert list((node.state / "tenants").iterdir()) == []
        specs.unlink()
        assert agent.grant(one).cdi_devices


@needs_root
@pytest.mark.parametrize("step", ["shim-release", "container"])
def test_each_step_of_an_offer_may_fail_and_be_asked_again(node, step):
    """A folder blocks each path where the offer writes a file, and a file each folder."""
    one = request("pod", container=True, request_id="claim")
    with node.client() as agent:
        agent.grant(one)
        path = node.state / "tenants" / "pod" / step
        aside = path.rename(path.with_name("aside"))
        if aside.is_dir():
            path.touch()
        else:
            path.mkdir()
        assert refused(lambda: agent.grant(one)).reason == "unavailable"
        assert [tenant.name for tenant in agent.tenants()] == ["pod"]
        if path.is_dir():
            path.rmdir()
        aside.replace(path) if aside.is_file() else (path.unlink(), aside.rename(path))
        assert agent.grant(one).cdi_devices


def test_a_tenant_stays_taken_while_its_revoke_waits_and_nothing_else_is_done_for_it(node):
    one = request("t", cores=900, request_id="claim")
    with node.client() as agent:
        program = deaf_program(node, agent.grant(one))
        waiting = threading.Thread(target=revoke_patiently, args=[node])
        waiting.start()
        wait_until(lambda: "revoked" in [event["event"] for event in node.events("t")])
        for order in (
            lambda: agent.grant(one),
            lambda: agent.grant(request("t", request_id="another")),
            lambda: agent.resize("t", Resize(cores_permille=10)),
            lambda: agent.suspend("t"),
            lambda: agent.resume("t"),
        ):
            assert "is being ended" in (error := refused(order)).what
            assert error.reason == "not-now"
        assert free_permille(agent) == 100
        assert "revoked" in agent.tenants()[0].finding
        node.kill()
        waiting.join()
        node.start()  # and it is being ended still
        assert refused(lambda: agent.grant(one)).reason == "not-now"
        assert program.poll() is None
        assert agent.revoke("t", 0).killed == 1, "of two orders the earlier end holds"
        assert agent.tenants() == []
        agent.grant(one)


def test_a_process_that_revokes_its_own_tenant_does_not_keep_what_it_has(node):
    """The caller is spared until it has its answer; its share stays allocated until its end."""
    granted = node.tenant("t", cores=900)
    code = (
        "import sys, time; from pathlib import Path; from penstock.node.rpc import AgentClient; "
        "AgentClient.local(Path(sys.argv[1])).revoke('t', 0); print('revoked', flush=True); "
        "time.sleep(600)"
    )
    environment = environment_for(granted)
    environment.pop("LD_PRELOAD", None)
    program = node.launch_in(environment, sys.executable, "-c", code, str(node.socket))
    assert program.stdout.readline() == "revoked\n"
    with node.client() as agent:
        assert free_permille(agent) == 100
        assert program.wait(20) != 0
        wait_until(lambda: free_permille(agent) == 1000)


def test_a_tenant_that_revokes_itself_again_and_again_ends_and_whoever_else_revokes_it_waits(node):
    """Once, each call gave it five more seconds, and an administrator was told that it was gone."""
    granted = node.tenant("t", cores=900)
    code = (
        "import sys, time; from pathlib import Path; from penstock.node.rpc import AgentClient\n"
        "while True:\n"
        "    try: AgentClient.local(Path(sys.argv[1])).revoke('t', 0)\n"
        "    except Exception: pass\n"
        "    print('revoked', flush=True); time.sleep(0.2)"
    )
    environment = environment_for(granted)
    environment.pop("LD_PRELOAD", None)
    program = node.launch_in(environment, sys.executable, "-c", code, str(node.socket))
    assert program.stdout.readline() == "revoked\n"
    with node.client() as agent:
        agent.revoke("t", 0)
        assert agent.tenants() == []
        assert free_permille(agent) == 1000
    assert program.wait(1) != 0


@needs_root
def test_a_tenant_whose_directory_cannot_be_removed_keeps_its_share_until_it_can(node):
    node.tenant("t", cores=900)
    directory = node.state / "tenants" / "t"
    subprocess.run(["mount", "--bind", directory, directory], check=True)  # EBUSY
    with node.client() as agent:
        try:
            assert refused(lambda: agent.revoke("t", 0)).reason == "unavailable"
            assert free_permille(agent) == 100
            assert "not removed" in agent.tenants()[0].finding
            assert refused(lambda: agent.grant(request("t"))).reason == "not-now"
        finally:
            subprocess.run(["umount", "-l", directory], check=True)
        wait_until(lambda: agent.tenants() == [])
        agent.grant(request("t"))


@needs_root
def test_on_a_read_only_disk_a_revoke_does_nothing(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "none", disk], check=True)
    node = Node(disk / "state")
    try:
        node.start()
        program = deaf_program(node, node.tenant("t"))
        subprocess.run(["mount", "--bind", disk, disk], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", disk], check=True)
        with node.client() as agent:
            assert refused(lambda: agent.revoke("t", 0)).reason == "unavailable"
            assert program.poll() is None
            subprocess.run(["umount", "-l", disk], check=True)
            agent.suspend("t")  # it is not being ended
            assert agent.revoke("t", 0).killed == 1
    finally:
        node.close()
        subprocess.run(["umount", "-l", disk], check=False)


def test_a_suspend_that_was_killed_half_way_is_finished_by_the_next_agent(node):
    node.tenant("t")
    node.kill()
    grant = node.state / "tenants" / "t" / "grant.yaml"
    assert "suspended: false" in grant.read_text()
    grant.write_text(grant.read_text().replace("suspended: false", "suspended: true"))
    node.start()
    page = node.state / "tenants" / "t" / "quota"
    wait_until(lambda: read_quota(page).limits.suspended)
    with node.client() as agent:
        agent.resume("t")
    wait_until(lambda: not read_quota(page).limits.suspended)


class Asker(threading.Thread):
    """Sends one tenant one request after the other, and retries each until it succeeds."""

    def __init__(self, node: Node, number: int) -> None:
        super().__init__(daemon=True)
        self.node, self.name, self.until = node, f"t{number}", threading.Event()
        self.done: list[str] = []
        self.wrong: list[str] = []

    def run(self) -> None:
        turn = 0
        while not self.until.is_set():
            turn += 1
            one = request(self.name, cores=100, memory=GIB, request_id=f"{self.name}-{turn}",
                          container=os.geteuid() == 0)  # fmt: skip
            cores = 100 + turn % 7
            for act, order in (
                ("grant", lambda agent, one=one: agent.grant(one)),
                (
                    "resize",
                    lambda agent, n=cores: agent.resize(self.name, Resize(cores_permille=n)),
                ),
                ("suspend", lambda agent: agent.suspend(self.name)),
                ("revoke", lambda agent: agent.revoke(self.name, 0)),
            ):
                self._until_done(act, order)

    def _until_done(self, act: str, order) -> None:
        asked = 0
        while True:
            try:
                with self.node.client() as agent:
                    order(agent)
            except PenstockError as error:  # noqa: PERF203 - asked again until it is done
                asked += 1
                if act == "revoke" and error.reason == "no-such-tenant" and asked > 1:
                    self.done.append(act)  # the answer was lost
                    return
                if error.reason not in {"unavailable", "not-now"}:
                    self.wrong.append(f"{act}: {error.reason}: {error}")
                    return
                time.sleep(0.02)
            else:
                self.done.append(act)
                return


def test_orders_of_an_agent_that_is_killed_at_any_moment_end_when_they_are_asked_again(node):
    chance = random.Random(18)  # noqa: S311 - moments to kill at
    askers = [Asker(node, number) for number in range(3)]
    for one in askers:
        one.start()
    for _ in range(6):
        time.sleep(chance.uniform(0.2, 0.7))
        node.kill()
        tenants = node.state / "tenants"
        half = [path for path in tenants.iterdir() if path.name.startswith(".")]
        for directory in set(tenants.iterdir()) - {*half}:  # what is visible is whole
            read_quota(directory / "quota")
            assert (directory / "grant.yaml").exists()
        node.start()
        assert not [path for path in half if path.exists()]
    for one in askers:
        one.until.set()
    for one in askers:
        one.join(60)
        assert not one.is_alive()
        assert not one.wrong
        assert one.done.count("revoke") >= 1
    with node.client() as agent:
        assert agent.tenants() == []
        assert free_permille(agent) == 1000
    assert list((node.state / "tenants").iterdir()) == []
    with contextlib.suppress(FileNotFoundError):
        assert list(Path(f"{node.state}-cdi").iterdir()) == []
