"""`penstock pool serve` refuses options that would harm another file, manager or pool."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from tests.pool.support.fake_node import card
from tests.pool.support.manager_process import wait_until

from penstock_api.v1 import pool_pb2 as pb


def serve(*options):
    return subprocess.run(
        [sys.executable, "-m", "penstock", "pool", "serve", *options],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_file_that_is_no_socket_is_not_replaced(tmp_path):
    path = tmp_path / "precious.txt"
    path.write_text("precious")
    done = serve(f"--database=sqlite:///{tmp_path}/pool.db", f"--socket={path}")
    assert done.returncode == 2
    assert "another file is there" in done.stderr
    assert path.read_text() == "precious"


def test_a_socket_that_another_manager_serves_is_left_to_it(manager, make_node, tmp_path):
    make_node(manager, cards=[card("x")])
    done = serve(f"--database=sqlite:///{tmp_path}/other.db", f"--socket={manager.socket}")
    assert done.returncode == 2
    assert "serves it already" in done.stderr
    assert manager.state().blocks == 20


def test_the_socket_that_a_killed_program_left_is_used(tmp_path, make_manager):
    made = make_manager(start=False)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(made.socket))
    made.start()
    wait_until(lambda: made.state().blocks == 0)


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--database=/var/pool.db", "named by a URL"),
        ("--database=mysql://x/y", "SQLite or PostgreSQL"),
        ("--precision=fp7", "known are fp32"),
        ("--socket=/tmp/" + "x" * 120, "too long"),
    ],
)
def test_senseless_options_are_refused_without_a_traceback(tmp_path, option, why):
    places = [f"--database=sqlite:///{tmp_path}/pool.db", f"--socket={tmp_path}/pool.sock"]
    done = serve(*places, option)
    assert done.returncode == 2
    assert why in done.stderr
    assert "Traceback" not in done.stderr


def test_a_manager_whose_web_address_is_taken_does_not_begin_to_lead(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        places = [f"--database=sqlite:///{tmp_path}/pool.db", f"--socket={tmp_path}/pool.sock"]
        done = serve(*places, f"--web-address={address}")
    assert done.returncode == 2
    assert address in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_manager_whose_certificate_is_none_does_not_begin_to_lead(tmp_path):
    files = []
    for name in ("cert", "key", "ca"):
        (tmp_path / name).write_text("no certificate")
        files.append(f"--tls-{name}={tmp_path / name}")
    places = [f"--database=sqlite:///{tmp_path}/pool.db", f"--socket={tmp_path}/pool.sock"]
    done = serve(*places, "--listen=127.0.0.1:0", *files)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "pool.db").exists()


def test_a_manager_whose_database_is_removed_stops_leading_until_it_is_put_back(
    manager, make_node, tmp_path
):
    make_node(manager)
    manager.acquire("a", 5)
    database = tmp_path / "manager0" / "pool.db"
    database.rename(tmp_path / "kept.db")
    wait_until(lambda: manager.said("stopped leading"))
    said = wait_until(lambda: manager.said("failed"))
    assert "was removed or replaced" in said["reason"]
    refused = manager.refused("GetPool", pb.GetPoolRequest())
    assert (refused.reason, "was removed or replaced" in str(refused)) == ("unavailable", True)
    assert not database.exists()  # no empty pool has taken its place
    (tmp_path / "kept.db").rename(database)
    wait_until(lambda: len([one for one in manager.events if one.get("event") == "leading"]) == 2)
    assert manager.phases() == {"a": "running"}
    manager.acquire("b", 5)
    manager.kill()
    manager.start()
    assert sorted(manager.phases()) == ["a", "b"]
