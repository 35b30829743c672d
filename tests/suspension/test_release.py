"""Release of a suspended tenant's device memory, and what stands in the books meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from tests.agent.conftest import request, wait_until
from tests.agent.support.other_user import as_nobody, needs_root
from tests.agent.support.programs import environment_for
from tests.suspension.conftest import (
    GIB,
    MIB,
    WORKER,
    Worker,
    free_of,
    released,
    resume,
    settled,
    suspend,
    tenant_of,
    used,
)

from penstock.model import PenstockError
from penstock.node.admission.resize import Resize
from penstock_shim import profiles
from penstock_shim.simulator import Machine


def test_a_released_tenant_goes_on_with_the_same_result(node, work):
    granted = node.tenant("t")
    undisturbed = work(node, granted, 300, 16).result()
    worker = work(node, granted, 300, 16)
    worker.reached(20)
    tenant = released(node, "t")
    assert tenant.suspended
    assert tenant.host_bytes >= 16 * MIB
    assert used(node) < MIB
    steps = worker.steps
    assert steps < 300
    resume(node, "t")
    tenant = settled(node, "t", "")
    assert not tenant.suspended
    assert tenant.host_bytes == 0
    assert worker.result() == undisturbed
    (done, back) = (one for one in node.events("t") if one["event"].startswith("memory-"))
    assert (done["event"], back["event"]) == ("memory-released", "memory-restored")
    assert done["bytes"] == back["bytes"] >= 16 * MIB
    assert done["seconds"].keys() == {"lock", "checkpoint"}
    assert back["seconds"].keys() == {"restore", "unlock"}


def test_others_use_the_device_meanwhile_and_the_resume_waits_for_room(node, work):
    whole = free_of(node).memory_bytes
    granted = node.tenant("t", cores=600, memory=whole - 2 * GIB)
    undisturbed = work(node, granted, 300, 16, "fork").result()
    worker = work(node, granted, 300, 16, "fork")
    worker.reached(10)
    released(node, "t")
    assert free_of(node).free_memory_bytes == whole
    assert free_of(node).free_cores_permille == 1000
    other = node.tenant("other", cores=1000, memory=whole)
    assert work(node, other, 20, 64).result()
    with pytest.raises(PenstockError, match="other holds") as refused:
        resume(node, "t")
    assert refused.value.reason == "not-enough-left"
    assert tenant_of(node, "t").suspension == "released"
    with node.client() as agent:
        agent.revoke("other", 0)
    resume(node, "t")
    settled(node, "t", "")
    assert free_of(node).free_cores_permille == 400
    results = worker.result()
    assert len(results) == 2
    assert results == undisturbed


@pytest.mark.parametrize("before", ["", "launches"])
@pytest.mark.parametrize("what", ["managed", "exported"])
def test_a_tenant_whose_driver_refuses_goes_on_as_before(node, work, what, before):
    granted = node.tenant("t")
    worker = work(node, granted, 300, 8, what)
    worker.reached(10)
    held = used(node)
    with node.client() as agent:
        if before:
            agent.suspend("t")
        assert agent.suspend("t", release_memory=True).suspension == "releasing"
    tenant = wait_until(
        lambda: (
            (one := tenant_of(node, "t")).suspension == before and one.suspension_problem and one
        )
    )
    assert "IPC" in tenant.suspension_problem
    assert tenant.suspended == bool(before)
    assert tenant.host_bytes == 0
    assert used(node) == held
    assert "memory-not-released" in [one["event"] for one in node.events("t")]
    resume(node, "t")
    assert not tenant_of(node, "t").suspension_problem
    worker.result()


def test_a_process_that_is_started_while_memory_is_released_waits(node, work):
    granted = node.tenant("t")
    worker = work(node, granted, 300, 8)
    worker.reached(10)
    released(node, "t")
    command = [sys.executable, WORKER, "20", "8"]
    late = Worker(node.launch_in(environment_for(granted), *command))
    most, until_s = 0, time.monotonic() + 2.5
    while time.monotonic() < until_s:
        most = max(most, used(node))
    assert most < MIB
    assert late.process.poll() is None
    assert tenant_of(node, "t").suspension == "released"
    resume(node, "t")
    settled(node, "t", "")
    assert worker.result()
    assert late.result()


def test_host_memory_is_bounded_and_a_refusal_changes_nothing(make_node, work):
    node = make_node("--host-memory=700Mi")
    small, large = node.tenant("small"), node.tenant("large", memory=4 * GIB)
    first = work(node, small, 200, 8, "hold")
    second = work(node, large, 60, 8, "hold")
    with node.client() as agent:
        agent.suspend("small", release_memory=True)
    settled(node, "small", "released")
    held = tenant_of(node, "small").host_bytes
    assert held > 400 * MIB  # with the context
    with pytest.raises(PenstockError, match="penstock agent --host-memory") as refused:
        suspend(node, "large")
    assert refused.value.reason == "not-enough-left"
    assert tenant_of(node, "large").suspension == ""
    second.reached(60)
    resume(node, "small")
    settled(node, "small", "")
    assert first.process.poll() is None


def test_released_memory_is_not_metered_and_stands_as_host_memory(node, work):
    granted = node.tenant("t")
    worker = work(node, granted, 30, 8, "hold")
    worker.reached(30)

    def byte_seconds():
        with node.client() as agent:
            usage = agent.used(0, int(time.time()) + 60)
        return sum(row.amounts.byte_seconds for row in usage.rows)

    released(node, "t")
    wait_until(lambda: row_of(node)["memory"]["used_bytes"] == 0)
    time.sleep(2)
    before = byte_seconds()
    time.sleep(2)
    assert byte_seconds() == before
    row = row_of(node)
    assert row["suspension"] == "released"
    assert row["host_memory_bytes"] == tenant_of(node, "t").host_bytes > 0
    resume(node, "t")
    settled(node, "t", "")
    assert wait_until(lambda: byte_seconds() > before)
    assert tenant_of(node, "t").finding == ""
    assert not any(one["event"] in {"deny", "suspend", "terminate"} for one in node.events("t"))


def row_of(node):
    (row,) = json.loads(node("ps", "-o", "json").stdout)
    return row


def test_a_released_tenant_cannot_be_resized_but_revoked(node, work):
    granted = node.tenant("t")
    worker = work(node, granted, 300, 8)
    released(node, "t")
    with node.client() as agent:
        with pytest.raises(PenstockError, match="resume it first"):
            agent.resize("t", Resize(cores_permille=100))
        agent.revoke("t", 200_000_000)
    assert worker.process.wait(10) != 0
    assert used(node) == 0
    assert tenant_of(node, "t") is None
    node.tenant("t", cores=1000)


def test_orders_that_make_no_sense_are_refused(node):
    node.tenant("t")
    with node.client() as agent:
        for wrong in ("x", "", "../t", "t" * 5000, "\n"):
            with pytest.raises(PenstockError):
                agent.suspend(wrong, release_memory=True)
            with pytest.raises(PenstockError):
                agent.resume(wrong)
        with pytest.raises(PenstockError, match="no such device"):
            agent.resume("t", ["7"])
        assert agent.resume("t", ["0"]).suspension == ""
        agent.suspend("t", release_memory=True)
        settled(node, "t", "released")
        with pytest.raises(PenstockError, match="no such device"):
            agent.resume("t", ["GPU-x"])
        with pytest.raises(PenstockError, match="named twice"):
            agent.resume("t", ["0", "0"])
        agent.suspend("t", release_memory=True)  # repeated: nothing more happens
        assert tenant_of(node, "t").suspension == "released"
        agent.resume("t", ["0"])
        settled(node, "t", "")


def test_a_process_that_ends_while_released_takes_its_memory_along(node, work):
    granted = node.tenant("t", lifetime="processes")
    worker = work(node, granted, 300, 8, "fork")
    held = released(node, "t").host_bytes
    pids = [slot.pid for slot in node.usage("t").slots]
    assert len(pids) == 2
    (child,) = set(pids) - {worker.process.pid}
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: len(node.usage("t").slots) == 1)
    resume(node, "t")
    settled(node, "t", "")
    assert 0 < used(node) < held
    (result,) = worker.result()
    assert result.startswith("result")


def test_a_tenant_without_processes_stays_released_until_it_is_resumed(node, work):
    granted = node.tenant("t", cores=100)
    worker = work(node, granted, 300, 8)
    released(node, "t")
    worker.process.kill()
    wait_until(lambda: not node.usage("t").slots)
    assert tenant_of(node, "t").suspension == "released"  # until it is revoked
    resume(node, "t")
    settled(node, "t", "")
    work(node, granted, 5, 8).result()


def test_a_suspension_during_a_release_keeps_launches_back_after_the_resume_of_memory(node, work):
    granted = node.tenant("t")
    worker = work(node, granted, 300, 8)
    with node.client() as agent:
        agent.suspend("t", release_memory=True)
        settled(node, "t", "released")
        agent.resume("t")
        agent.suspend("t")  # while it is being restored, or just after
    tenant = settled(node, "t", "launches")
    assert tenant.suspended
    resume(node, "t")
    settled(node, "t", "")
    worker.result()


def test_the_command_line_waits_for_the_memory_and_tells_refusals(node, work):
    granted = node.tenant("t")
    worker = work(node, granted, 400, 8)
    done = node("suspend", "t", "--release-memory")
    assert done.returncode == 0, done.stderr
    assert "in host memory" in done.stderr
    assert "released (" in node("ps").stdout
    assert node("resume", "t").returncode == 0
    assert tenant_of(node, "t").suspension == ""
    done = node("suspend", "t", "--release-memory", "--no-wait")
    assert "is being released" in done.stderr
    settled(node, "t", "released")
    assert "is restored" in node("resume", "t", "--no-wait").stderr
    settled(node, "t", "")
    worker.process.kill()
    worker.process.wait()
    refuser = work(node, granted, 10, 8, "managed", "hold")
    done = node("suspend", "t", "--release-memory")
    assert done.returncode == 2
    assert "was not released, and it runs on" in done.stderr
    assert "IPC" in done.stderr
    refuser.process.kill()
    with node.client() as agent:
        agent.grant(request("u", cores=100))
        agent.suspend("u", release_memory=True)
        settled(node, "u", "released")
        agent.revoke("t", 0)
        agent.grant(request("v", cores=950))
    done = node("resume", "u")
    assert done.returncode == 2
    assert "not enough left" in done.stderr


@pytest.fixture
def of_driver(make_node, tmp_path):
    """Makes a node whose simulated driver has the given major version."""

    def make(major: int):
        text = (Path(profiles.__file__).parent / "h200.yaml").read_text()
        profile = tmp_path / "older.yaml"
        profile.write_text(f"{text}  driver_major: {major}\n")
        node = make_node(f"--simulate={profile}")
        (folder,) = (node.state / "machines").iterdir()
        node.machine = lambda: Machine(folder)
        return node

    return make


def test_a_driver_without_checkpoints_is_refused_and_the_tenant_runs_on(of_driver, work):
    node = of_driver(565)
    worker = work(node, node.tenant("t"), 300, 8)
    with contextlib.suppress(PenstockError):
        suspend(node, "t")
        assert "not supported" in settled(node, "t", "").suspension_problem
    assert tenant_of(node, "t").suspension == ""
    assert worker.result()


def test_a_process_that_an_older_driver_has_broken_is_reported(of_driver, work):
    node = of_driver(575)
    worker = work(node, node.tenant("t"), 300, 8, "managed")
    suspend(node, "t")
    assert "managed memory" in settled(node, "t", "").suspension_problem
    assert worker.process.wait(20) == 3  # its next call fails, as with the driver
    suspend(node, "t")
    settled(node, "t", "released")


def test_a_bound_that_the_machine_cannot_spare_is_reduced_and_the_log_says_so(make_node):
    node = make_node("--host-memory=900Ti")
    told = json.loads(node.process.stderr.readline())
    assert told["event"] == "host memory is bounded"
    assert "--host-memory=900Ti is more than this machine can spare" in told["reason"]
    assert f"--host-memory={told['bound']}" in told["fix"]
    again = make_node(f"--host-memory={told['bound']}")
    again.process.send_signal(signal.SIGTERM)
    with again.process.stderr as log:
        assert "host memory is bounded" not in log.read()
    node.stop()


THEIRS = (
    "agent.grant(Request(command=('x',), memory_bytes=[1 << 30], cores_permille=[100], "
    "name='theirs', lifetime='until-revoked'))"
)


@needs_root
def test_a_user_cannot_release_the_memory_of_another_and_only_an_administrator_lifts_theirs(node):
    node.tenant("roots")
    refused = as_nobody(node, "agent.suspend('roots', '', release_memory=True)")
    assert refused.startswith("not-yours")
    assert tenant_of(node, "roots").suspension == ""
    assert as_nobody(node, THEIRS) == "done"
    released(node, "theirs")  # by root
    assert as_nobody(node, "agent.resume('theirs')").startswith("not-allowed")
    assert tenant_of(node, "theirs").suspension == "released"
    resume(node, "theirs")
    settled(node, "theirs", "")
    assert as_nobody(node, "agent.suspend('theirs', '', release_memory=True)") == "done"
    settled(node, "theirs", "released")
    assert as_nobody(node, "agent.resume('theirs')") == "done"
    settled(node, "theirs", "")
