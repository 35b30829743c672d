"""The options of `penstock agent` for cards are refused at its start if no card could run."""

import os

import pytest
from tests.pool_nodes.support.pool import certificates
from tests.support.openssl import needs_openssl

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts others' processes")
ENDED_AT_START = 2


def refusal(make_node, *options):
    """What an agent that ends at its start with these options says."""
    node = make_node(start=False)
    done = node(*node.agent_command(*options))
    assert done.returncode == ENDED_AT_START, done.stderr
    assert '"started"' not in done.stderr
    return done.stderr


@pytest.fixture
def interpreter(tmp_path):
    """A program in the place of an interpreter, which does as it is told, in its own folder."""

    def make(script="exit 0", mode=0o755, folder_mode=0o755):
        path = tmp_path / "bin" / "python"
        path.parent.mkdir()
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(mode)
        path.parent.chmod(folder_mode)
        return path

    return make


@pytest.fixture(scope="module")
def listening(tmp_path_factory):
    """The options by which an agent joins a pool and listens for other nodes."""
    folder = tmp_path_factory.mktemp("pool") / "certificates"
    certificates(folder)
    files = {"cert": "node-1.crt", "key": "node-1.key", "ca": "ca.crt"}
    options = [f"--tls-{what}={folder / name}" for what, name in files.items()]
    return ["--listen=127.0.0.1:0", "--pool=127.0.0.1:1", *options]


@pytest.mark.parametrize("user", ["no-such-user", "", "no\nuser"])
def test_a_user_that_is_not_there_is_refused(make_node, user):
    said = refusal(make_node, f"--card-user={user}")
    assert "for --card-user" in said
    assert "there is no such user" in said


def test_an_interpreter_that_is_not_there_or_cannot_be_run_is_refused(
    make_node, tmp_path, interpreter
):
    missing = tmp_path / "none" / "python"
    assert f"{missing}: No such file" in refusal(make_node, f"--card-python={missing}")
    plain = interpreter(mode=0o644)
    said = refusal(make_node, f"--card-python={plain}")
    assert f"{plain}: Permission denied" in said
    assert "--card-python" in said


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 0", "no Python interpreter that works: exit status 0"),
        ("echo a library is missing >&2; exit 127", "that works: a library is missing"),
        ("echo missing: torch", "it has no torch"),
        ("echo missing: penstock torch", "it has no penstock and no torch"),
    ],
)
def test_an_interpreter_without_what_a_card_needs_is_refused(make_node, interpreter, script, why):
    said = refusal(make_node, f"--card-python={interpreter(script)}")
    assert why in said
    assert "penstock[torch]" in said


@needs_root
@needs_openssl
def test_an_interpreter_that_the_user_of_cards_cannot_reach_is_refused(
    make_node, interpreter, listening, tmp_path
):
    path = interpreter("echo missing:", folder_mode=0o700)
    for options in ([], ["--card-user=nobody"]):
        said = refusal(make_node, *listening, f"--card-python={path}", *options)
        assert f"user nobody cannot run cards with {path}: Permission denied" in said
        assert "another user with --card-user" in said
    make_node(*listening, f"--card-python={path}", "--card-user=root")


def test_the_interpreter_is_found_by_its_name_and_from_the_agents_folder(
    make_node, interpreter, monkeypatch
):
    path = interpreter("echo missing:")
    monkeypatch.chdir(path.parent.parent)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    for name in ("bin/python", "python"):
        make_node(f"--card-python={name}")


@needs_root
@needs_openssl
def test_without_options_for_cards_an_agent_starts_where_none_can_run(make_node, listening):
    make_node(*listening)  # torch is not installed beside these tests, nor need it be
