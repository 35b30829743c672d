"""An unreadable grant.yaml affects its tenant alone."""

from __future__ import annotations

import pytest
from tests.agent.conftest import GIB, request, wait_until
from tests.agent.support.programs import backlogged

from penstock.model import PenstockError
from penstock.node.admission.resize import Resize

pytestmark = pytest.mark.timed


def test_a_tenant_whose_grant_is_damaged_keeps_its_share_and_harms_nobody(node):
    granted = node.tenant("bad", cores=300, memory=8 * GIB)
    whole = (node.state / "tenants/bad/grant.yaml").read_text()
    node.tenant("lost", cores=100, memory=GIB)
    program = node.launch(granted, *backlogged(600))
    wait_until(lambda: node.usage("bad").devices[0].launches > 100)
    node.kill()
    (node.state / "tenants/bad/grant.yaml").write_text(whole.replace("10s", "0 parsecs"))
    (node.state / "tenants/lost/grant.yaml").unlink()
    node.start()
    with node.client() as agent:
        found = {tenant.name: tenant for tenant in agent.tenants()}
        assert "0 parsecs" in found["bad"].finding
        assert "grant.yaml was removed" in found["lost"].finding
        assert found["bad"].shares[0].cores_permille == 300
        assert agent.node().devices[0].free_cores_permille == 600
        agent.grant(request("good", cores=500, memory=GIB))
        with pytest.raises(PenstockError, match="not enough left"):
            agent.grant(request("more", cores=200, memory=GIB))
        for order in (
            lambda: agent.resize("bad", Resize(cores_permille=50)),
            lambda: agent.suspend("bad"),
        ):
            with pytest.raises(PenstockError, match="cannot be changed"):
                order()
        launches = node.usage("bad").devices[0].launches
        wait_until(lambda: node.usage("bad").devices[0].launches > launches)
        agent.revoke("lost", 0)
        assert not (node.state / "tenants/lost").exists()

        (node.state / "tenants/bad/grant.yaml").write_text(whole)  # by an administrator's hand
        wait_until(lambda: not {t.name: t for t in agent.tenants()}["bad"].finding)
        assert agent.suspend("bad").suspended
        (node.state / "tenants/bad/grant.yaml").write_text("")
        ended = agent.revoke("bad", 0)
        assert ended.killed + ended.ended == 1
        assert [tenant.name for tenant in agent.tenants()] == ["good"]
    assert program.wait(10) != 0


def test_orders_about_a_tenant_with_a_damaged_page_are_carried_out_whole_or_not_at_all(node):
    node.tenant("scribbled", cores=100, memory=GIB)
    node.tenant("lost", cores=100, memory=GIB)
    (node.state / "tenants/scribbled/usage").write_bytes(b"")  # its own user may
    (node.state / "tenants/lost/quota").unlink()
    with node.client() as agent:
        done = agent.resize("scribbled", Resize(cores_permille=50))
        assert done.tenant.shares[0].cores_permille == 50
        assert "cannot read the usage of" in done.notes[0]
        assert agent.suspend("scribbled").suspended
        for order in (
            lambda: agent.suspend("lost"),
            lambda: agent.resize("lost", Resize(cores_permille=50)),
        ):
            with pytest.raises(PenstockError, match="cannot be changed") as refused:
                order()
            assert refused.value.reason == "not-now"
        assert "suspended: true" not in (node.state / "tenants/lost/grant.yaml").read_text()
        agent.revoke("lost", 0)


def test_every_grace_that_can_be_asked_for_is_taken_up_again_and_others_are_refused(node):
    with node.client() as agent:
        for number, grace_ns in enumerate((0, 1, 400_000, 24 * 3600 * 10**9)):
            agent.grant(request(f"t{number}", cores=10, memory=GIB, grace_ns=grace_ns))
    node.kill()
    node.start()
    with node.client() as agent:
        assert [tenant.finding for tenant in agent.tenants()] == [""] * 4
        agent.revoke("t0", 0)
