"""Cards that are killed, stopped or cut off are named in time, and no other card is."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from tests.card_link.support.cards import PATH, PROJECT, on_unix_socket, spawned
from tests.card_link.support.peer import as_worker
from tests.card_link.support.worker import COUNT, ECHO, MAKE, SLEEP, STUCK

from penstock.card.link import CardError, LinkSettings, OperationError
from penstock.card.link.frame import REPLY, encode

pytestmark = pytest.mark.timed
WITHIN_S = 2.0
PAUSE_S = 0.3  # what a busy machine may add


def test_a_killed_card_is_named_with_its_signal_at_once():
    with spawned() as card:
        replies = [card.link.request(SLEEP, b"60"), card.link.request(ECHO)]
        os.kill(card.pid, signal.SIGKILL)
        begun_s = time.monotonic()
        for reply in replies:
            with pytest.raises(CardError) as caught:
                reply.result()
            assert (
                f"card 1 (gpu 0 of node b, pid {card.pid}) is gone: its process ended (killed by "
                "signal 9)" in str(caught.value)
            )
        assert time.monotonic() - begun_s < 1
        with pytest.raises(CardError, match="killed by signal 9"):
            card.link.post(COUNT)
        with pytest.raises(CardError, match="killed by signal 9"):
            card.link.request(ECHO)
        assert not card.link.is_alive
        assert card.close() == -9


def test_a_card_that_is_killed_while_nobody_uses_it_is_noticed():
    with spawned() as card:
        os.kill(card.pid, signal.SIGKILL)
        deadline_s = time.monotonic() + 1
        while card.link.is_alive and time.monotonic() < deadline_s:
            time.sleep(0.005)
        assert "killed by signal 9" in str(card.link.failure)


def test_a_killed_card_whose_children_keep_its_socket_is_noticed():
    """They hold the connection open: only the process's own end tells."""
    with spawned("card 1", "--forks") as card:
        child = int(bytes(card.link.request(COUNT).result())) - 1
        try:
            os.kill(card.pid, signal.SIGKILL)
            with pytest.raises(CardError, match="killed by signal 9"):
                card.link.request(ECHO).result()
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_killed_worker_that_is_no_child_is_gone(tmp_path):
    with on_unix_socket(tmp_path) as (link, process):
        reply = link.request(SLEEP, b"60")
        process.kill()
        with pytest.raises(CardError, match=f"pid {process.pid}.* is gone: its connection ended"):
            reply.result()


def test_a_stopped_card_is_named_within_two_seconds_and_others_go_on():
    with spawned() as card, spawned("card 2") as other:
        card.link.request(ECHO).result()
        reply = card.link.request(SLEEP, b"0.1")
        os.kill(card.pid, signal.SIGSTOP)
        begun_s = time.monotonic()
        with pytest.raises(
            CardError, match=rf"card 1 \(.*pid {card.pid}\) does not answer: nothing"
        ):
            reply.result()
        assert 1.0 < time.monotonic() - begun_s < WITHIN_S + PAUSE_S
        assert other.link.request(ECHO, b"on").result() == b"on"


def test_a_card_that_works_for_long_is_not_taken_for_hung():
    with spawned() as card:
        reply = card.link.request(SLEEP, b"3.5")
        time.sleep(2.5)
        progress = card.link.progress
        assert (progress.kind, progress.position) == ("sleep", 1)
        assert 1.5 < progress.since_s < 3.4
        assert reply.result() == b""


def test_a_card_that_works_for_long_while_much_is_queued_is_not_taken_for_hung():
    """Its reader cannot take more, so it sees no ping: it reports on its own."""
    settings = LinkSettings(queue_bytes=1 << 20)
    with spawned("card 1", "--inbox-bytes", "1000", settings=settings) as card:
        card.link.post(SLEEP, b"3")
        body = bytes(1 << 20)
        for _ in range(8):
            card.link.post(COUNT, body)
        assert card.link.request(COUNT).result() == b"9"


def test_a_large_reply_that_takes_long_is_not_taken_for_hung():
    def act(peer):
        frame = peer.hear()
        size = 40 << 10
        header, _ = encode(1, frame.kind, REPLY, frame.number, [bytes(size)])
        peer.connection.sendall(header)
        for _ in range(40):
            time.sleep(0.06)
            peer.connection.sendall(bytes(1 << 10))

    link = as_worker(act)
    assert link.request(MAKE).result() == bytes(40 << 10)
    link.abort()


def test_half_a_reply_and_then_nothing_is_a_hung_card():
    def act(peer):
        frame = peer.hear()
        whole = b"".join(encode(1, frame.kind, REPLY, frame.number, [bytes(1000)]))
        peer.connection.sendall(whole[:500])
        time.sleep(6)

    link = as_worker(act)
    begun_s = time.monotonic()
    with pytest.raises(CardError, match="does not answer"):
        link.request(MAKE).result()
    assert time.monotonic() - begun_s < WITHIN_S + PAUSE_S


def test_a_card_that_reads_nothing_is_noticed_though_much_is_to_be_sent():
    link = as_worker(lambda peer: time.sleep(6))
    begun_s = time.monotonic()

    def post_for_ever() -> None:
        while True:
            link.post(COUNT, bytes(1 << 20))

    with pytest.raises(CardError, match="does not answer"):
        post_for_ever()
    assert time.monotonic() - begun_s < WITHIN_S + PAUSE_S


def test_a_connection_whose_other_half_is_closed_is_gone():
    def act(peer):
        peer.hear()
        peer.connection.shutdown(socket.SHUT_WR)
        time.sleep(3)

    link = as_worker(act)
    begun_s = time.monotonic()
    with pytest.raises(CardError, match="is gone: its connection ended"):
        link.request(ECHO).result()
    assert time.monotonic() - begun_s < 1


STOPPED = """
import sys, time
from tests.card_link.support.cards import spawned
from tests.card_link.support.worker import ECHO, SLEEP
with spawned() as card:
    reply = card.link.request(SLEEP, b"5.5")
    print("ready", flush=True)
    assert reply.result() == b""
    assert card.link.request(ECHO, b"on").result() == b"on"
    print("went on", flush=True)
"""


def test_a_program_that_was_stopped_for_five_seconds_goes_on():
    """Nothing is heard from the card meanwhile, but that is the program's own fault."""
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED], cwd=PROJECT, env={**os.environ, **PATH},
        stdout=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        assert program.stdout.readline() == "ready\n"
        time.sleep(0.3)
        os.kill(program.pid, signal.SIGSTOP)
        time.sleep(5)
        os.kill(program.pid, signal.SIGCONT)
        assert program.stdout.read() == "went on\n"
        assert program.wait(10) == 0


def test_an_operation_that_never_ends_is_shown_but_does_not_fail_the_card():
    with spawned() as card:
        card.link.post(STUCK)
        time.sleep(2.5)
        assert card.link.is_alive
        assert card.link.progress.kind == "stuck"
        begun_s = time.monotonic()
        card.link.close(0.2)
        assert time.monotonic() - begun_s < 1
        assert card.close() == 75


def test_an_error_on_the_card_is_no_failure_of_the_card():
    with spawned() as card:
        with pytest.raises(OperationError):
            card.link.request(SLEEP, b"no number").result()
        assert card.link.is_alive
