"""`penstock pool serve` refuses options that would harm another file, manager or pool."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from tests.pool.support.fake_node import card
from tests.pool.support.manager_process import wait_until


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
