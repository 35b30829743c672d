"""Callers and their permissions: identified by the kernel locally, by certificates over TCP."""

from __future__ import annotations

import subprocess

import grpc
import pytest
from tests.agent.conftest import GIB, request, wait_until
from tests.agent.support.other_user import NOBODY, as_nobody, needs_root
from tests.support.openssl import needs_openssl

from penstock.model import PenstockError
from penstock.node.admission.resize import Resize
from penstock.node.rpc import AgentClient

GRANT = (
    "agent.grant(Request(command=('x',), memory_bytes=[1 << 30], cores_permille=[100], "
    "name='theirs', lifetime='until-revoked'{more}))"
)


@needs_root
def test_a_user_has_tenants_of_their_own_and_no_say_over_others(node):
    node.tenant("roots", memory=GIB)
    assert as_nobody(node, GRANT.format(more="")) == "done"
    with node.client() as agent:
        users = {tenant.name: tenant.user for tenant in agent.tenants()}
    assert users["theirs"] in {"nobody", str(NOBODY)}
    usage = node.state / "tenants" / "theirs" / "usage"
    assert usage.stat().st_uid == NOBODY
    assert (node.state / "tenants" / "theirs" / "quota").stat().st_uid == 0
    assert as_nobody(node, "agent.suspend('theirs')") == "done"
    for order in ("agent.suspend('roots')", "agent.revoke('roots', 0)"):
        assert as_nobody(node, order).startswith("not-yours")
    assert as_nobody(node, "agent.revoke('theirs', 0)") == "done"


@needs_root
def test_a_user_does_not_oversubscribe(node):
    assert as_nobody(node, GRANT.format(more=", oversubscribe=True")).startswith("not-allowed")
    # nor does he say what a cluster's scheduler accounts for
    assert as_nobody(node, GRANT.format(more="")) == "done"
    raised = (
        "from penstock.node.admission.resize import Resize; agent.resize('theirs', "
        "Resize(memory_bytes=1 << 30, cores_permille=100, accounted=True))"
    )
    refused = as_nobody(node, raised)
    assert refused.startswith("not-allowed")
    assert "what a scheduler accounts for" in refused


@needs_root
def test_what_an_administrator_suspended_its_owner_does_not_lift(node):
    assert as_nobody(node, GRANT.format(more="")) == "done"
    more = (
        "from penstock.node.admission.resize import Resize; "
        "agent.resize('theirs', Resize(cores_permille={}))"
    )
    with node.client() as agent:
        agent.suspend("theirs", "it harms others")
        for order in ("agent.resume('theirs')", more.format(200)):
            refused = as_nobody(node, order)
            assert refused.startswith("not-allowed"), order
            assert "root has suspended it" in refused
        assert as_nobody(node, more.format(50)) == "done"
        assert as_nobody(node, "agent.suspend('theirs')") == "done"  # does not make it theirs
        node.kill()
        node.start()
    assert as_nobody(node, "agent.resume('theirs')").startswith("not-allowed")
    with node.client() as agent:
        assert agent.tenants()[0].suspended
        assert not agent.resume("theirs").suspended
    for order in ("agent.suspend('theirs')", "agent.resume('theirs')", more.format(200)):
        assert as_nobody(node, order) == "done"


@needs_root
def test_a_user_does_not_choose_his_own_punishment(make_node):
    node = make_node("--measured=suspend", "--longest-grace=20s")
    for more, says in (
        (", measured='deny'", "users may set suspend or stricter"),
        (", measured='throttle'", "users may set suspend or stricter"),
        (", grace_ns=21 * 10**9", "at most 20s"),
        (", allow_unknown=True", "allowUnknown"),
        (", labels={'pod': 'somebody-elses'}", "labels pod"),
    ):
        refused = as_nobody(node, GRANT.format(more=more))
        assert refused.startswith("not-allowed"), more
        assert says in refused
        assert "ask an administrator" in refused
    allowed = ", measured='suspend', grace_ns=20 * 10**9, labels={'team': 'vision'}"
    assert as_nobody(node, GRANT.format(more=allowed)) == "done"
    node.tenant("roots", measured="deny", grace_ns=10**12, labels={"pod": "p"})
    with node.client() as agent:
        assert [tenant.name for tenant in agent.tenants()] == ["roots", "theirs"]


@needs_root
def test_a_user_holds_no_more_of_a_device_than_the_node_allows_over_all_tenants(make_node):
    node = make_node("--user-limit=40")
    ask = (
        "agent.grant(Request(command=('x',), memory_bytes=[{memory} << 30], "
        "cores_permille=[{cores}], name='{name}', lifetime='until-revoked'))"
    )
    assert as_nobody(node, ask.format(name="a", memory=10, cores=300)) == "done"
    refused = as_nobody(node, ask.format(name="b", memory=1, cores=101))
    assert refused.startswith("not-allowed")
    assert "at most 40 % of a device" in refused
    assert "10.1 % of cores requested, at most 10 % left beside a" in refused
    refused = as_nobody(node, ask.format(name="b", memory=60, cores=10))
    assert "60Gi of memory requested" in refused
    assert "of cores" not in refused
    assert as_nobody(node, ask.format(name="b", memory=1, cores=100)) == "done"
    grow = "agent.resize('b', Resize(cores_permille={}))"
    assert as_nobody(node, grow.format(101)).startswith("not-allowed")
    assert as_nobody(node, grow.format(50)) == "done"
    node.tenant("roots", cores=500)
    with node.client() as agent:
        assert agent.resize("a", Resize(cores_permille=450)).tenant.shares[0].cores_permille == 450


@needs_root
def test_a_bounded_user_gets_the_device_where_there_is_room_within_the_bound(make_node):
    node = make_node("--user-limit=50", "--simulate=h200,2")
    node.tenant("roots", cores=800, devices=["1"])
    ask = (
        "print(agent.grant(Request(command=('x',), memory_bytes=[1 << 30], cores_permille=[{}], "
        "name='{}', lifetime='until-revoked')).tenant.shares[0].device_index)"
    )
    assert as_nobody(node, ask.format(400, "first")).startswith("0")
    assert as_nobody(node, ask.format(150, "second")).startswith("1")


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--measured=nothing", "steps are deny"),
        ("--longest-grace=5", "write it like 60s"),
        ("--longest-grace=25h", "0s to 24h"),
        ("--user-limit=150", "write it like 50"),
    ],
)
def test_bounds_that_are_none_are_refused(make_node, option, says):
    node = make_node(start=False)
    done = node(*node.agent_command(option))
    assert done.returncode == 2
    assert says in done.stderr


def test_grpcs_own_socket_lies_where_nobody_else_gets(node):
    inside = node.state / ".agent"
    assert inside.stat().st_mode & 0o077 == 0
    channel = grpc.insecure_channel(f"unix:{inside / 'grpc.sock'}")
    with channel, pytest.raises(PenstockError, match="the caller cannot be identified"):
        AgentClient(channel, "inside").tenants()


@needs_root
def test_an_administrator_s_client_made_before_the_agent_moves_to_the_admin_socket(make_node):
    node = make_node(start=False)
    with node.client() as early:
        node.start()
        node.socket.unlink()  # users cannot reach the agent any more, administrators can
        assert list(early.tenants()) == []


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A CA, a server and a client certificate that it signed, and one of another CA."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, check=True)

    for authority in ("ca", "strangers-ca"):
        files = ["-keyout", f"{authority}.key", "-out", f"{authority}.crt"]
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
                f"/CN={authority}", *files)  # fmt: skip
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    (folder / "workload").write_text("subjectAltName=URI:spiffe://node/controller")
    (folder / "nothing").write_text("basicConstraints=CA:FALSE")
    for name, subject, authority, names in (
        ("agent", "/CN=agent", "ca", "names"),
        ("controller", "/CN=controller", "ca", "names"),
        ("stranger", "/CN=stranger", "strangers-ca", "names"),
        ("workload", "/", "ca", "workload"),
        ("nameless", "/", "ca", "nothing"),
    ):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", subject,
                "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.crt", "-CAkey",
                f"{authority}.key", "-CAcreateserial", "-days", "2", "-extfile", names,
                "-out", f"{name}.crt")  # fmt: skip
    return folder


def over_tls(node, certificates, name, authority="ca"):
    return AgentClient.remote(
        f"localhost:{node.started['port']}",
        certificates / f"{name}.crt",
        certificates / f"{name}.key",
        certificates / f"{authority}.crt",
    )


@needs_openssl
def test_over_tcp_only_who_holds_a_certificate_of_the_nodes_ca_gives_orders(
    make_node, certificates
):
    node = make_node(
        "--listen=127.0.0.1:0",
        f"--tls-cert={certificates / 'agent.crt'}",
        f"--tls-key={certificates / 'agent.key'}",
        f"--tls-ca={certificates / 'ca.crt'}",
    )
    with over_tls(node, certificates, "controller") as agent:
        agent.grant(request("far"))
        assert [(t.name, t.user) for t in agent.tenants()] == [("far", "controller")]
    with over_tls(node, certificates, "stranger") as agent, pytest.raises(PenstockError):
        agent.tenants()
    with over_tls(node, certificates, "workload") as agent:
        agent.grant(request("workloads", cores=10, memory=GIB))
        users = {tenant.name: tenant.user for tenant in agent.tenants()}
        assert users["workloads"] == "spiffe://node/controller"
    nameless = pytest.raises(PenstockError, match="a certificate needs a name")
    with over_tls(node, certificates, "nameless") as agent, nameless:
        agent.tenants()
    plain = grpc.insecure_channel(f"localhost:{node.started['port']}")
    with plain, pytest.raises(PenstockError):
        AgentClient(plain, "plain").tenants()


def tls(address="127.0.0.1:0", cert="agent.crt", key="agent.key", ca="ca.crt"):
    return [f"--listen={address}", f"--tls-cert={cert}", f"--tls-key={key}", f"--tls-ca={ca}"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--listen=127.0.0.1:0"], "--tls-cert, --tls-key, --tls-ca is missing"),
        (["--tls-cert=x"], "--listen is missing"),
        (["--listen=127.0.0.1:0", "--tls-cert=x", "--tls-key=x", "--tls-ca=x"], "cannot read x"),
        (tls("127.0.0.1:99999"), "invalid address: '127.0.0.1:99999'"),
        (tls("127.0.0.1"), "a port from 0 (any) to 65535"),
        (tls(ca="empty"), "empty is empty"),
        (tls(ca="words"), "words cannot be used"),
        (tls(cert="words"), "words and agent.key cannot be used"),
        (tls(key="controller.key"), "agent.crt and controller.key cannot be used"),
    ],
)
@needs_openssl
def test_an_agent_that_cannot_listen_safely_does_not_start(
    make_node, certificates, monkeypatch, options, says
):
    monkeypatch.chdir(certificates)
    (certificates / "empty").write_text("\n")
    (certificates / "words").write_text("no certificate\n")
    node = make_node(start=False)
    done = node(*node.agent_command(*options))
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1, "gRPC says nothing of its own"
    assert not node.socket.exists()


def test_an_agent_that_is_asked_to_stop_leaves_its_tenants(node):
    node.tenant("t")
    assert node.stop() == 0
    assert not node.socket.exists()
    assert (node.state / "tenants" / "t" / "quota").exists()
    node.start()
    with node.client() as agent:
        wait_until(lambda: [tenant.name for tenant in agent.tenants()] == ["t"])
