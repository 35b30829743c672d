"""Where a pool is looked for, and what is said when it is not there."""

from __future__ import annotations

import socket

import grpc
import pytest
from tests.agent.conftest import Node
from tests.pool_cli.conftest import Commands
from tests.pool_cli.support import certificates
from tests.pool_cli.support.unkind_pool import UnkindPool, grant
from tests.support.openssl import needs_openssl


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def remote(files):
    credentials = grpc.ssl_server_credentials(
        [((files / "manager.key").read_bytes(), (files / "manager.crt").read_bytes())],
        root_certificates=(files / "ca.crt").read_bytes(),
        require_client_auth=True,
    )
    made = UnkindPool("localhost:0", credentials)
    made.scripts = [grant]
    made.start()
    yield made
    made.stop()


def options_of(files, name="admin"):
    return [f"--pool-cert={files / name}.crt", f"--pool-key={files / name}.key",
            f"--pool-ca={files / 'ca.crt'}"]  # fmt: skip


def closed_port():
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


@needs_openssl
def test_a_manager_elsewhere_is_reached_with_the_certificates_of_the_how_to(
    without_pool, remote, files
):
    done = without_pool("status", "--pool", remote.address, *options_of(files))
    assert done.returncode == 0, done.stderr
    done = without_pool(
        "status",
        env={
            "PENSTOCK_POOL": remote.address,
            "PENSTOCK_POOL_CERT": str(files / "admin.crt"),
            "PENSTOCK_POOL_KEY": str(files / "admin.key"),
            "PENSTOCK_POOL_CA": str(files / "ca.crt"),
        },
    )
    assert done.returncode == 0, done.stderr


@needs_openssl
def test_the_next_address_is_tried_when_one_does_not_answer(without_pool, remote, files):
    addresses = f"localhost:{closed_port()}, {remote.address}"
    for command in (
        ["status"],
        ["compact", "-y"],
        ["acquire", "--tflops=5"],
        ["watch", "--no-follow"],
    ):
        done = without_pool(*command, "--pool", addresses, *options_of(files))
        if command[0] != "watch":
            assert done.returncode == 0, (command, done.stderr)
    nobody = f"localhost:{closed_port()},localhost:{closed_port()}"
    done = without_pool("status", "--pool", nobody, *options_of(files))
    assert done.returncode == 2
    assert done.stderr.startswith("penstock: no manager of the pool answers: ")
    assert "check the addresses and the certificates" in done.stderr


@needs_openssl
def test_a_server_with_a_certificate_of_another_ca_is_no_manager(
    without_pool, remote, files, tmp_path
):
    others = certificates.make(tmp_path / "others")
    given = [*options_of(files)[:2], f"--pool-ca={others / 'ca.crt'}"]
    done = without_pool("status", "--pool", remote.address, *given)
    assert done.returncode == 2
    assert f"no manager of a pool answers at {remote.address}" in done.stderr
    assert not remote.calls


@needs_openssl
def test_files_that_cannot_be_used_are_named(without_pool, files, tmp_path):
    empty = tmp_path / "empty"
    empty.touch()
    good = {"cert": files / "admin.crt", "key": files / "admin.key", "ca": files / "ca.crt"}
    for change, message in (
        ({"cert": tmp_path / "none"}, "No such file or directory; name readable files"),
        ({"cert": empty}, "cannot be used"),
        ({"key": files / "node-1.key"}, "name a certificate and its own key"),
        ({"key": tmp_path}, "Is a directory"),
        ({"ca": empty}, "name the certificate of the CA"),
    ):
        given = [f"--pool-{word}={file}" for word, file in (good | change).items()]
        done = without_pool("status", "--pool", "localhost:9472", *given)
        assert done.returncode == 2
        assert message in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_pool_that_is_not_there_is_said_with_what_to_do(without_pool, tmp_path):
    done = without_pool("status")
    assert done.returncode == 2
    assert "neither an agent nor a pool's manager runs here" in done.stderr
    assert "penstock agent --pool" in done.stderr
    file = tmp_path / "file"
    file.touch()
    dead = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(dead))
    for options, message in (
        (["--pool", ""], "perhaps a shell variable is not set"),
        (["--pool", "manager"], "--pool-cert, --pool-key, --pool-ca is missing"),
        (["--pool", str(tmp_path / "none.sock")], "there is no such file"),
        (["--pool", str(file)], "it is not a socket"),
        (["--pool", str(dead)], f"no manager of a pool answers at {dead}"),
        (["--pool-cert", str(file)], "add --pool HOST:PORT"),
    ):
        done = without_pool("status", *options)
        assert done.returncode == 2, options
        assert message in done.stderr
        assert done.stderr.count("\n") == 1


@needs_openssl
def test_an_address_of_another_form_is_refused(without_pool, files):
    for address in ("manager", "manager:", ":9472", "manager:99999", "manager:port", "a:1,,b:2"):
        done = without_pool("status", "--pool", address, *options_of(files))
        assert done.returncode == 2
        assert "it is neither HOST:PORT nor the path of a socket" in done.stderr


def test_a_command_needs_the_agent_of_a_pool_here(without_pool):
    done = without_pool("acquire", "--tflops", "5", "--", "true")
    assert done.returncode == 2
    assert "a command runs on a node of the pool, through the node's agent" in done.stderr


def test_an_agent_of_no_pool_says_so(tmp_path):
    node = Node(tmp_path / "agent")
    node.start()
    try:
        commands = Commands(node.state)
        done = commands("status")
        assert done.returncode == 2
        assert "is in no compute pool: its agent was started without --pool" in done.stderr
        done = commands("acquire", "--tflops", "5", "--wait", "1h", "--", "true")
        assert done.returncode == 2
    finally:
        node.close()
