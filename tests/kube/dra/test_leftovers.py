"""Tenants whose claims are gone."""

from __future__ import annotations

import signal
import sys

import pytest
from tests.kube.support.nodes import STATE
from tests.kube.support.waiting import until

from penstock.kube.kubelet.allocation import tenant_name

pytestmark = pytest.mark.kube


GRANT = """
import asyncio, sys
from pathlib import Path
from penstock.node.rpc import AgentClient
from penstock.kube.kubelet.allocation import Allocation, Tenants
from penstock.model.share import Share
agent = AgentClient.local(Path(sys.argv[1]) / "agent.sock")
uuid = agent.node().devices[0].uuid
one = Allocation(sys.argv[2], "nowhere", "forgotten", "", {uuid: Share(1 << 30, 10)},
                 labels={"penstock.io/claim": "forgotten"})
asyncio.run(Tenants(agent).grant(one))
print(one.tenant)
"""


# Says whether the agent sees that a tenant is used, before the tenant is removed.
IS_USED = """
import sys, time
from pathlib import Path
from penstock.node.rpc import AgentClient
agent = AgentClient.local(Path(sys.argv[1]) / "agent.sock")
while True:
    tenant = {one.name: one for one in agent.tenants()}.get(sys.argv[2])
    if tenant is None or tenant.members:
        print(tenant is not None)
        break
    time.sleep(0.1)
"""


UNPREPARE = """
import sys, grpc
from penstock_api.kubelet import dra_v1_pb2 as pb, dra_v1_pb2_grpc
with grpc.insecure_channel("unix:/var/lib/kubelet/plugins/penstock.io/dra.sock") as channel:
    stub = dra_v1_pb2_grpc.DRAPluginStub(channel)
    claims = [pb.Claim(namespace="nowhere", uid=uid, name="forgotten") for uid in sys.argv[1:]]
    asked = pb.NodeUnprepareResourcesRequest(claims=claims)
    answer = stub.NodeUnprepareResources(asked, timeout=30)
    print(sorted((uid, one.error) for uid, one in answer.claims.items()))
    asked = pb.NodePrepareResourcesRequest(claims=claims[:1])
    answer = stub.NodePrepareResources(asked, timeout=6.4)  # a second is kept, the rest rounded
    print(answer.claims[sys.argv[1]].error)
"""


def test_unused_leftovers_are_removed_and_claims_are_unprepared_without_an_api_server(
    cluster, dra_nodes
):
    node = dra_nodes["node-2"]

    def granted(owner: str) -> str:
        done = node.call(sys.executable, "-c", GRANT, STATE, owner)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def removed() -> list[str]:
        return [event["tenant"] for event in node.beside.events("removed a leftover")]

    used = tenant_name("forgotten", "used")
    folder, at = f"{STATE}/tenants/{used}", "/run/penstock-tenant"
    inside = (
        f"mkdir -p {at}; until test -e {folder}/usage && mount --bind {folder}/container {at};"
        f"do sleep 0.1; done; mount --bind {folder}/usage {at}/usage && echo held && exec sleep 600"
    )
    holder = node.service("holder")
    holder.command = ("unshare", "--mount", "sh", "-c", inside)

    def is_held() -> bool:
        """Whoever uses it is there before it is; on a very slow machine its 4 s may be too few."""
        holder.start()
        assert granted("used") == used
        done = node.call(sys.executable, "-c", IS_USED, STATE, used)
        assert done.returncode == 0, done.stderr
        if done.stdout != "True\n":
            holder.kill()
        return done.stdout == "True\n"

    assert any(is_held() for _ in range(5))
    before = removed().count(used)
    try:
        for owner in ("idle", "third"):  # a whole time later the used one is still there
            idle = granted(owner)
            until(f"the {owner} one is removed", lambda t=idle: t in removed())
            assert node.tenants().keys() == {used}
        assert removed().count(used) == before
    finally:
        holder.kill()
    until("nobody uses it any more", lambda: node.tenants() == {})

    server = cluster.process("kube-apiserver")
    granted("prepared")
    server.send_signal(signal.SIGSTOP)
    try:
        done = node.call(sys.executable, "-c", UNPREPARE, "prepared", "never-seen")
    finally:
        server.send_signal(signal.SIGCONT)
    assert done.returncode == 0, done.stderr
    ended, refused = done.stdout.splitlines()
    assert ended == "[('never-seen', ''), ('prepared', '')]"
    assert "within 5 s" in refused, "in the time that its caller had left"
    assert node.tenants() == {}
