"""Requests: what an agent grants, changes and ends, and its errors when it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.agent.conftest import GIB, request, wait_until
from tests.agent.support.programs import backlogged, environment_for
from tests.enforce.support import gpu_program as enforced

from penstock.model import PenstockError
from penstock.node.admission.resize import Resize
from penstock_api.v1 import agent_pb2, agent_pb2_grpc
from penstock_shim.pages import read_quota

pytestmark = pytest.mark.timed


def test_a_granted_tenant_is_listed_and_its_program_gets_its_quota(node):
    granted = node.tenant("t", cores=250, memory=2 * GIB)
    program = node.launch(granted, *backlogged(60))
    wait_until(lambda: node.usage("t").devices[0].spent_ns > 500_000_000)
    with node.client() as agent:
        (tenant,) = agent.tenants()
        assert tenant.name == "t"
        assert tenant.shares[0].cores_permille == 250
        assert tenant.processes == 1
        left = agent.node().devices[0]
        assert left.free_cores_permille == 750
        assert left.memory_bytes - left.free_memory_bytes == 2 * GIB
        before = node.machine().record(0)[0]
        program.poll()
        wait_until(lambda: node.machine().record(0)[0].at_ns - before.at_ns > 2_000_000_000)
        after = node.machine().record(0)[0]
        share = (after.busy_ns - before.busy_ns) / (after.at_ns - before.at_ns)
        assert 0.22 < share < 0.27
        ended = agent.revoke("t", 5_000_000_000)
        assert ended.ended + ended.killed == 1
        assert agent.tenants() == []
    assert program.wait(10) != 0
    assert not (node.state / "tenants" / "t").exists()


def test_a_resize_holds_from_the_next_launch_on(node):
    granted = node.tenant("t", cores=100)
    node.launch(granted, *backlogged(60))
    with node.client() as agent:
        answer = agent.resize("t", Resize(cores_permille=700, memory_bytes=3 * GIB))
        assert answer.tenant.shares[0].cores_permille == 700
    limits = read_quota(node.state / "tenants" / "t" / "quota").limits
    assert limits.devices[0].cores_permille == 700
    assert limits.devices[0].memory_bytes == 3 * GIB


def test_a_suspended_tenant_launches_nothing_until_it_is_resumed(node):
    granted = node.tenant("t", cores=500)
    node.launch(granted, *backlogged(60))
    wait_until(lambda: node.usage("t").devices[0].launches > 100)
    with node.client() as agent:
        assert agent.suspend("t", "maintenance").suspended

        def still():
            before = node.usage("t").devices[0].launches
            wait_for_round()
            return node.usage("t").devices[0].launches == before

        wait_until(still)
        assert not agent.resume("t").suspended
        stopped = node.usage("t").devices[0].launches
        wait_until(lambda: node.usage("t").devices[0].launches > stopped + 100)
    kinds = [event["event"] for event in node.events("t")]
    assert kinds.index("suspended") < kinds.index("resumed")


def wait_for_round():
    time.sleep(0.3)


@pytest.mark.parametrize(
    ("order", "reason", "says"),
    [
        (lambda a: a.grant(request("a", cores=100)), "exists", "choose another"),
        (lambda a: a.grant(request("b", cores=900)), "not-enough-left", "a holds 8Gi and 30 cores"),
        (lambda a: a.grant(request("b", memory=1 << 60)), "invalid", "more than the device has"),
        (lambda a: a.grant(request("b/../c")), "invalid", "b/../c"),
        (lambda a: a.resize("a", Resize()), "invalid", "nothing to change"),
        (lambda a: a.resize("x", Resize(cores_permille=5)), "no-such-tenant", "it has only a"),
        (lambda a: a.suspend("x"), "no-such-tenant", "it has only a"),
        (lambda a: a.revoke("x", 0), "no-such-tenant", "it has only a"),
        (lambda a: list(a.events(["x"])), "no-such-tenant", "it has only a"),
        (lambda a: a.grant(request("b", devices=["7"])), "invalid", "no such device"),
    ],
)
def test_an_order_that_cannot_be_carried_out_says_why_and_changes_nothing(
    node, order, reason, says
):
    node.tenant("a")
    with node.client() as agent:
        with pytest.raises(PenstockError) as failed:
            order(agent)
        assert failed.value.reason == reason
        assert says in str(failed.value)
        assert [tenant.name for tenant in agent.tenants()] == ["a"]
        assert agent.node().devices[0].free_cores_permille == 700


def test_asking_again_under_one_request_id_is_one_grant(node):
    with node.client() as agent:
        first = agent.grant(request("t", request_id="one"))
        assert agent.grant(request("t", request_id="one")).environment == first.environment
        with pytest.raises(PenstockError, match="already exists"):
            agent.grant(request("t", request_id="two"))
        assert len(agent.tenants()) == 1


def test_a_call_without_a_deadline_is_refused(node):
    with grpc.insecure_channel(f"unix:{node.socket}") as channel:
        stub = agent_pb2_grpc.AgentStub(channel)
        with pytest.raises(grpc.RpcError) as failed:
            stub.GetNode(agent_pb2.GetNodeRequest())
        assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "deadline" in failed.value.details()


def test_health_and_reflection_are_served(node):
    with grpc.insecure_channel(f"unix:{node.socket}") as channel:
        check = health_pb2.HealthCheckRequest(service="penstock_api.v1.Agent")
        answer = health_pb2_grpc.HealthStub(channel).Check(check, timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel)
        question = reflection_pb2.ServerReflectionRequest(list_services="")
        (listing,) = reflect.ServerReflectionInfo(iter([question]), timeout=5)
        services = {one.name for one in listing.list_services_response.service}
        assert "penstock_api.v1.Agent" in services


def test_events_follow_what_happens(node):
    node.tenant("t")
    with node.client() as agent:
        events = agent.events(["t"], follow=True)
        assert next(events).event == "granted"
        agent.suspend("t", "a look at it")
        event = next(events)
        assert (event.event, event.reason) == ("suspended", "a look at it")


def test_usage_is_reported_every_interval(node):
    granted = node.tenant("t", cores=500)
    node.launch(granted, *backlogged(60))
    with node.client() as agent:
        reports = agent.usage(0.2)
        spent = [next(reports).devices[0].spent_ns for _ in range(10)]
    assert spent == sorted(spent)
    assert spent[-1] > spent[0]


def test_penstock_run_asks_the_agent_and_the_tenant_ends_with_its_command(node):
    done = node("run", "--name=t", "--memory=1Gi", "--cores=10", "--", "sh", "-c", "exit 7")
    assert done.returncode == 7
    assert "granted by the agent" in done.stderr
    wait_until(lambda: not (node.state / "tenants" / "t").exists())
    again = node("run", "--name=t", "--memory=1Gi", "--cores=10", "--", "true")
    assert again.returncode == 0, again.stderr


def test_penstock_run_hands_what_its_policy_says_of_excess_to_the_agent(node, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "apiVersion: penstock.io/v1alpha1\nkind: QuotaPolicy\nmetadata: {name: p}\n"
        "spec: {limits: {memory: 1Gi, cores: 10}, onExceed: {measured: suspend, grace: 37s}}\n"
    )
    record = node.state / "tenants" / "t" / "grant.yaml"
    done = node("run", "--name=t", f"--policy={policy}", "--", "cat", str(record))
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["spec"]["onExceed"] == {
        "measured": "suspend",
        "grace": "37s",
    }


def test_a_name_is_free_as_soon_as_its_command_has_ended(node):
    for _ in range(3):
        done = node("run", "-q", "--name=t", "--memory=1Gi", "--cores=90", "--", "true")
        assert (done.returncode, done.stderr) == (0, "")


GRANT_AND_END = """
import os, sys
from pathlib import Path
from penstock.node.rpc import AgentClient
from penstock.node.admission.admit import Request
for _ in range(int(sys.argv[3])):
    child = os.fork()
    if child == 0:
        AgentClient.local(Path(sys.argv[1])).grant(
            Request(("true",), [1 << 28], [5], name=sys.argv[2], lifetime="processes",
                    request_id=os.urandom(8).hex())
        )
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise SystemExit(1)
"""


def test_names_that_end_and_are_granted_anew_by_many_at_once_stop_nobody(node):
    """Two threads once locked the tenant table and the usage recorder in opposite order."""
    loops = [
        subprocess.Popen(
            [sys.executable, "-c", GRANT_AND_END, str(node.socket), f"t{number}", "25"],
            stderr=subprocess.PIPE, text=True,
        )
        for number in range(5)
    ]  # fmt: skip
    node.programs += loops
    assert [loop.communicate(timeout=120)[1] for loop in loops] == [""] * 5
    with node.client() as agent:
        agent.tenants()
    assert node.stop() == 0


def test_a_command_that_cannot_be_started_leaves_no_tenant(node):
    done = node("run", "--name=t", "--memory=1Gi", "--cores=10", "--", "/no/such/thing")
    assert done.returncode == 127
    with node.client() as agent:
        assert agent.tenants() == []


def test_two_agents_do_not_share_a_state_directory(node):
    other = [option for option in node.agent_command() if "meter-dir" not in option]
    done = node(*other, f"--meter-dir={node.state}-other")
    assert done.returncode == 2
    assert f"an agent is already running on {node.state}" in done.stderr
    assert f"pid {node.process.pid} holds" in done.stderr


def test_run_beside_an_agent_on_its_own_state_directory_is_refused(node):
    limits = ["--memory=1Gi", "--cores=10"]
    done = node("run", "--no-agent", "--simulate=h200", *limits, "--", "true")
    assert done.returncode == 2
    assert "an agent owns" in done.stderr


def test_orders_by_command_need_an_agent(tmp_path):
    environment = {**os.environ, "PENSTOCK_STATE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "penstock", "suspend", "t"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no agent runs here" in done.stderr


def test_a_program_sees_its_quota_through_the_agents_environment(node):
    granted = node.tenant("t", memory=3 * GIB)
    code = "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0); "
    code += "print(n.nvmlDeviceGetMemoryInfo(h).total)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment_for(granted),
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == 3 * GIB


def test_penstock_quota_set_asks_the_agent(node):
    node.tenant("t", cores=300)
    done = node("quota", "set", "t", "--cores", "45")
    assert done.returncode == 0, done.stderr
    with node.client() as agent:
        assert agent.tenants()[0].shares[0].cores_permille == 450
        assert agent.node().devices[0].free_cores_permille == 550
    refused = node("quota", "set", "t", "--cores", "200")
    assert refused.returncode == 2


def test_a_program_that_allocates_no_more_is_not_ended_by_a_shrink(node):
    """The agent refuses a resize below the memory in use, unless it is forced."""
    granted = node.tenant("t", memory=8 * GIB, grace_ns=1_000_000_000)
    program = node.launch_in(
        environment_for(granted), sys.executable, str(enforced.__file__), "alloc", "5120"
    )
    wait_until(lambda: node.usage("t").devices[0].total_bytes > 5 * GIB)
    with node.client() as agent:
        with pytest.raises(PenstockError, match="in use, more than the new 2Gi") as refused:
            agent.resize("t", Resize(memory_bytes=2 * GIB))
        assert refused.value.reason == "not-now"
        assert agent.tenants()[0].shares[0].memory_bytes == 8 * GIB
        fewer = agent.resize("t", Resize(cores_permille=100, memory_bytes=6 * GIB)).tenant
        assert (fewer.shares[0].cores_permille, fewer.shares[0].memory_bytes) == (100, 6 * GIB)
        assert "in use" in node("quota", "set", "t", "--memory", "2Gi").stderr
        time.sleep(4)  # two looks, the grace, and SIGTERM
        assert program.poll() is None
        assert "exceeded" not in {one["event"] for one in node.events("t")}
        forced = node("quota", "set", "t", "--memory", "2Gi", "--force")
        assert "new allocations are refused until enough memory is freed" in forced.stderr
        assert agent.tenants()[0].shares[0].memory_bytes == 2 * GIB
    wait_until(lambda: program.poll() is not None)
