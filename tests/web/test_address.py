"""The address of the page: this machine alone, unless others may see it."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from penstock.model import PenstockError
from penstock.web import web_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:9480", "127.0.0.1", 9480), ("127.1.2.3:0", "127.1.2.3", 0),
     ("[::1]:80", "::1", 80), ("localhost:65535", "localhost", 65535)],
)  # fmt: skip
def test_loopback_is_taken(text, host, port):
    address = web_address(text, is_open=False)
    assert (address.host, address.port) == (host, port)


@pytest.mark.parametrize("text", ["0.0.0.0:80", "[::]:80", "10.1.2.3:80", "[fe80::1]:80",
                                  "[::ffff:10.0.0.1]:80"])  # fmt: skip
def test_what_others_can_reach_is_taken_only_if_that_is_said(text):
    with pytest.raises(PenstockError, match="--web-open"):
        web_address(text, is_open=False)
    assert web_address(text, is_open=True).is_open


@pytest.mark.parametrize("text", ["", ":80", "80", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x",
                                  "127.0.0.1:65536", "127.0.0.1:-1", "example.com:80",
                                  "127.0.0.1:²", "http://127.0.0.1:80"])  # fmt: skip
def test_what_is_no_address_is_refused(text):
    for is_open in (False, True):
        with pytest.raises(PenstockError, match="ADDR:PORT"):
            web_address(text, is_open=is_open)


def refusal(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_a_manager_does_not_start_without_the_page_that_it_was_asked_for(tmp_path):
    database = (f"--database=sqlite:///{tmp_path}/pool.db", f"--socket={tmp_path}/pool.sock")
    said = refusal("pool", "serve", *database, "--web-address=0.0.0.0:0")
    assert "--web-open" in said
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refusal("pool", "serve", *database, f"--web-address=127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in said
    assert "--web-address" in said


def test_the_permission_without_a_page_is_refused(tmp_path):
    said = refusal("top", f"--state-dir={tmp_path}", "--web-open")
    assert "--web-address" in said
