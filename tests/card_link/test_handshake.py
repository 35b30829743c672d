"""The handshake: releases, applications and tokens that do not fit are refused with a reason."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from tests.card_link.support.cards import AGREEMENT, HASTY, ended, link_to, on_unix_socket, start
from tests.card_link.support.peer import Peer, dialled
from tests.card_link.support.worker import ECHO, TOKEN

from penstock import __version__
from penstock.card.link import (
    Agreement,
    CardError,
    Description,
    InheritedEndpoint,
    LinkSettings,
    UnixEndpoint,
)
from penstock.card.link.frame import HELLO, PROOF
from penstock_api.v1 import card_pb2 as pb


def refused(act, agreement: Agreement = AGREEMENT, settings: LinkSettings = HASTY) -> str:
    """The error of a link whose worker is a peer that does `act`, and what the peer was told."""
    ours, theirs = socket.socketpair()
    told = []

    def run() -> None:
        with theirs:
            peer = Peer(theirs, AGREEMENT)
            try:
                act(peer)
                told.append(peer.reason())
            except (EOFError, OSError, AssertionError) as error:
                told.append(repr(error))

    thread = threading.Thread(target=run)
    thread.start()
    with pytest.raises(CardError) as caught:
        link_to(InheritedEndpoint(ours), agreement, settings=settings)
    thread.join(10)
    return f"{caught.value} | {told[0]}"


def test_a_newer_worker_that_still_speaks_this_version_is_used():
    ours, theirs = socket.socketpair()

    def run() -> None:
        with theirs:
            peer = Peer(theirs, AGREEMENT)
            peer.greet(Description("b", "gpu 0"), newest_version=9, release="7.0")
            peer.prove(b"worker")
            assert peer.hear().kind == ECHO

    thread = threading.Thread(target=run)
    thread.start()
    link = link_to(InheritedEndpoint(ours))
    assert link.worker.release == "7.0"
    link.post(ECHO)
    thread.join(10)
    link.abort()


@pytest.mark.parametrize(("oldest", "newest"), [(2, 9), (0, 0)])
def test_a_worker_that_is_too_new_or_too_old_is_refused_and_both_releases_are_named(oldest, newest):
    text = refused(
        lambda peer: peer.greet(
            Description("b", "gpu 0"), oldest_version=oldest, newest_version=newest, release="7.0"
        )
    )
    said, told = text.split(" | ")
    assert f"this side is Penstock {__version__}, the other side Penstock 7.0" in said
    assert f"this side is Penstock {__version__}, the other side Penstock 7.0" in told
    assert "card 1 cannot be reached" in said


def test_a_front_end_that_is_too_new_is_refused_by_a_real_worker(tmp_path):
    (tmp_path / "private").mkdir(0o700)
    path = tmp_path / "private" / "card"
    with ended(start("--unix", path)), dialled(path, AGREEMENT) as peer:
        peer.greet(None, oldest_version=2, newest_version=9, release="7.0")
        assert f"this side is Penstock {__version__}, the other side Penstock 7.0" in peer.reason()


def test_another_application_is_refused():
    assert "another application" in refused(
        lambda peer: peer.greet(Description("b", "gpu 0"), application="other")
    )


def test_a_worker_without_the_token_is_refused_by_the_program():
    def act(peer):
        peer.agreement = Agreement("app", bytes(32))
        peer.greet(Description("b", "gpu 0"))
        peer.prove(b"worker")
        peer.decoder.version = 0

    assert "does not know the application's token" in refused(act)


def test_a_worker_that_sends_the_programs_own_proof_back_is_refused():
    def act(peer):
        peer.greet(Description("b", "gpu 0"))
        peer.say(PROOF, bytes(peer.hear().body))

    assert "does not know the application's token" in refused(act)


def test_a_front_end_without_the_token_is_refused_and_the_right_one_is_served(tmp_path):
    private = tmp_path / "private"
    private.mkdir(0o700)
    with ended(start("--unix", private / "card")):
        with dialled(private / "card", Agreement("app", bytes(32))) as peer:
            peer.greet()
            peer.prove(b"front-end")
            peer.decoder.version = 0
            assert "does not know the application's token" in peer.reason()
        link = link_to(UnixEndpoint(private / "card"))
        assert link.request(ECHO, b"on").result() == b"on"
        link.abort()


def test_the_token_never_crosses_the_connection(tmp_path):
    seen = bytearray()

    def act(peer):
        peer.greet(Description("b", "gpu 0"))
        seen.extend(peer.hear().body)
        for hello in peer.hellos:
            seen.extend(hello)
        raise EOFError

    refused(act)
    assert len(seen) > 64
    assert TOKEN not in seen


def test_a_worker_that_says_nothing_is_given_up_in_time():
    begun_s = time.monotonic()
    text = refused(lambda peer: time.sleep(1.2), settings=LinkSettings(connect_s=0.5))
    assert "it has not answered in 0.5 s" in text
    assert 0.5 <= time.monotonic() - begun_s < 8


def test_a_worker_that_says_a_byte_at_a_time_is_given_up_in_time():
    def act(peer):
        for one in b"pskC" * 100:
            peer.connection.sendall(bytes([one]))
            time.sleep(0.1)

    begun_s = time.monotonic()
    assert "has not answered" in refused(act, settings=LinkSettings(connect_s=0.5))
    assert 0.5 <= time.monotonic() - begun_s < 8


def test_a_hello_that_is_too_long_or_no_hello_is_refused():
    long = pb.CardHello(application="x" * 5000).SerializeToString()
    assert "at most 4096" in refused(lambda peer: peer.say(HELLO, long))
    assert "instead of kind 1" in refused(lambda peer: peer.say(PROOF))
    assert "cannot be read" in refused(lambda peer: peer.say(HELLO, b"\xff\xff"))
    assert "no frame of Penstock" in refused(lambda peer: peer.connection.sendall(b"GET /" * 9))


def test_callers_who_say_nothing_do_not_delay_the_program(tmp_path):
    private = tmp_path / "private"
    private.mkdir(0o700)
    with ended(start("--unix", private / "card")):
        idle = [dialled(private / "card", AGREEMENT) for _ in range(10)]
        try:
            link = link_to(UnixEndpoint(private / "card"), settings=LinkSettings(connect_s=5))
            assert link.request(ECHO, b"on").result() == b"on"
            link.abort()
        finally:
            for one in idle:
                one.__exit__()


def test_a_worker_tells_its_device_and_release(tmp_path):
    with on_unix_socket(tmp_path) as (link, _):
        assert (link.worker.device, link.worker.release) == ("gpu 0", __version__)
