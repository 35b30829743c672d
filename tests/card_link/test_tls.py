"""Cards on other nodes: mutual TLS 1.3, and only the peer that was agreed on."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
import time
from datetime import timedelta

import pytest
from tests.card_link.support.cards import AGREEMENT, link_to, over_tls, write_identity
from tests.card_link.support.worker import COUNT, ECHO, FAIL

from penstock.card.link import (
    Agreement,
    CardError,
    LinkSettings,
    OperationError,
    TcpEndpoint,
    TlsIdentity,
    endpoint,
    issue,
    listen_tcp,
)
from penstock.card.link.stream import TlsStream
from penstock.model import PenstockError

NAMES = ["penstock:app:card:1", "penstock:app:front-end"]


@pytest.fixture(scope="module")
def made():
    return issue.issue(NAMES)


@pytest.fixture(scope="module")
def other_application():
    return issue.issue(NAMES)


@pytest.fixture
def worker(made, tmp_path):
    with over_tls(tmp_path, tuple(made.values())) as (endpoint, process):
        yield endpoint, process


def refused(endpoint: TcpEndpoint, **options) -> str:
    with pytest.raises(CardError) as caught:
        link_to(endpoint, settings=LinkSettings(connect_s=5), **options)
    return str(caught.value)


def test_a_node_that_does_not_answer_is_asked_again_as_its_name_may_have_moved(
    made, tmp_path, monkeypatch
):
    monkeypatch.setattr(endpoint, "_ANSWERS_S", 0.3)
    full = socket.create_server(("127.0.0.1", 0), backlog=0)
    port = full.getsockname()[1]
    waiting = [socket.socket() for _ in range(4)]
    for one in waiting:
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", port))
    with over_tls(tmp_path, tuple(made.values())) as (there, _):
        addresses = iter([port])
        dial = socket.create_connection
        monkeypatch.setattr(
            endpoint.socket, "create_connection",
            lambda at, within_s: dial((at[0], next(addresses, at[1])), within_s),
        )  # fmt: skip
        link = link_to(there, settings=LinkSettings(connect_s=20))
        assert next(addresses, None) is None, "the full one was not asked"
        link.close()
    for one in (full, *waiting):
        one.close()


def test_requests_of_any_size_cross_in_both_directions(worker):
    link = link_to(worker[0])
    replies = []
    for size in (0, 1, 5000, 16_384, 16_385, 3_000_000):
        body = bytes(range(251)) * (size // 251 + 1)
        link.post(COUNT, body)
        replies.append((body[:size], link.request(ECHO, body[:size])))
    for body, reply in replies:
        assert reply.result(20) == body
    with pytest.raises(OperationError, match="no such row"):
        link.request(FAIL, b"no such row").result()
    link.close()
    assert worker[1].wait(5) == 0


def test_both_directions_at_once_deliver_all(worker):
    link = link_to(worker[0])
    body = bytes(range(256)) * 2000
    replies = [link.request(ECHO, body) for _ in range(40)]
    assert all(reply.result(20) == body for reply in replies)
    link.abort()


def test_the_peer_may_be_known_by_its_name(made, tmp_path):
    with over_tls(tmp_path, tuple(made.values())) as (endpoint, _):
        named = TcpEndpoint(endpoint.host, endpoint.port, endpoint.identity, NAMES[0])
        link = link_to(named)
        assert link.request(ECHO, b"on").result() == b"on"
        link.abort()


def test_a_certificate_of_the_same_authority_but_another_name_is_refused_by_the_program(worker):
    endpoint = worker[0]
    wrong = TcpEndpoint(endpoint.host, endpoint.port, endpoint.identity, "penstock:app:card:2")
    text = refused(wrong)
    assert "not that of 'penstock:app:card:2' but of 'penstock:app:card:1'" in text


def test_a_certificate_of_the_same_authority_but_another_name_is_refused_by_the_worker(
    made, worker
):
    """The worker's own certificate is good, but it is not the front-end's."""
    endpoint = worker[0]
    wrong = TcpEndpoint(endpoint.host, endpoint.port, made[NAMES[0]], endpoint.peer)
    assert "card 1 cannot be reached" in refused(wrong)
    link = link_to(endpoint)
    assert link.request(ECHO, b"on").result() == b"on"
    link.abort()


def test_the_same_names_of_another_application_are_refused_by_both_sides(
    worker, other_application, made
):
    endpoint = worker[0]
    theirs = other_application[NAMES[1]]
    stranger = TlsIdentity(theirs.certificate, theirs.key, made[NAMES[0]].authority)
    assert "cannot be reached" in refused(
        TcpEndpoint(endpoint.host, endpoint.port, stranger, endpoint.peer)
    )
    distrusting = TlsIdentity(
        endpoint.identity.certificate, endpoint.identity.key, theirs.authority
    )
    assert "certificate verify failed" in refused(
        TcpEndpoint(endpoint.host, endpoint.port, distrusting, NAMES[0])
    )


def test_a_certificate_that_has_expired_is_refused(made, tmp_path):
    expired = issue.issue(NAMES, timedelta(seconds=-10))
    with over_tls(tmp_path, tuple(expired.values())) as (endpoint, _):
        assert "expired" in refused(endpoint)


def test_a_peer_without_a_certificate_or_with_older_tls_is_refused(worker):
    endpoint = worker[0]
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = version
        plain = socket.create_connection((endpoint.host, endpoint.port), 5)
        tls = context.wrap_socket(plain, do_handshake_on_connect=False)
        with tls, pytest.raises(OSError):  # noqa: PT011 - OpenSSL's words
            greeted(tls)


def greeted(tls: ssl.SSLSocket) -> bytes:
    """A client's handshake may succeed; the refusal is then what it reads."""
    tls.do_handshake()
    return tls.recv(1)


def test_callers_who_begin_no_handshake_do_not_delay_the_program(worker):
    endpoint = worker[0]
    with contextlib.ExitStack() as idle:
        for _ in range(10):
            idle.enter_context(socket.create_connection((endpoint.host, endpoint.port), 5))
        link = link_to(endpoint, settings=LinkSettings(connect_s=5))
        assert link.request(ECHO, b"on").result() == b"on"
        link.abort()


def test_a_token_is_needed_too(worker):
    assert "token" in refused(worker[0], agreement=Agreement("app", bytes(32)))
    with pytest.raises(ValueError, match="must have 32 bytes"):
        link_to(worker[0], Agreement("app", b""))


def test_unusable_certificates_are_named_when_a_worker_starts_to_listen(made, tmp_path):
    good = made[NAMES[0]]
    for bad in (
        TlsIdentity(b"no pem", good.key, good.authority),
        TlsIdentity(good.certificate, made[NAMES[1]].key, good.authority),
        TlsIdentity(good.certificate, good.key, b"no pem"),
    ):
        with pytest.raises(PenstockError, match="certificates of a card's connection"):
            listen_tcp("127.0.0.1", 0, bad, NAMES[1])
    with pytest.raises(PenstockError, match=r"cannot read .*nowhere"):
        TlsIdentity.from_files(tmp_path / "nowhere", tmp_path, tmp_path)


def test_identities_are_read_from_files_and_are_not_shown(made, tmp_path):
    good = made[NAMES[0]]
    files = write_identity(tmp_path / "identity", good)
    read = TlsIdentity.from_files(*(files / one for one in ("certificate", "key", "authority")))
    assert read == good
    assert "PRIVATE" not in repr(read)
    assert AGREEMENT.token.hex() not in repr(AGREEMENT)
    assert "token" not in repr(AGREEMENT)


def test_openssl_accepts_what_is_issued(made, tmp_path):
    files = write_identity(tmp_path / "identity", made[NAMES[0]])
    command = ["openssl", "verify", "-x509_strict", "-CAfile", files / "authority"]
    try:
        subprocess.run([*command, files / "certificate"], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not there")


def test_a_send_that_found_no_room_is_repeated_with_the_same_bytes(made):
    """OpenSSL demands it; a queue that put other bytes first would break the connection."""
    server = made[NAMES[0]].context(is_server=True)
    client = made[NAMES[1]].context(is_server=False)
    ours, theirs = socket.socketpair()
    for one in (ours, theirs):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        one.settimeout(5)

    made_streams = []
    thread = threading.Thread(
        target=lambda: made_streams.append(TlsStream(server.wrap_socket(theirs, server_side=True)))
    )
    thread.start()
    sender = TlsStream(client.wrap_socket(ours))
    thread.join(5)
    receiver = made_streams[0]
    body = bytes(range(256)) * 4000
    left, got, refusals = [memoryview(body)[:100], memoryview(body)[100:]], bytearray(), 0
    room = memoryview(bytearray(50_000))
    deadline_s = time.monotonic() + 10
    while len(got) < len(body) and time.monotonic() < deadline_s:
        sent = sender.send(left) if left else 0
        refusals += not sent
        while sent:
            step = min(sent, len(left[0]))
            left[0] = left[0][step:]
            sent -= step
            if not left[0]:
                del left[0]
        with contextlib.suppress(TimeoutError):
            got += room[: receiver.receive(room, 0)]
    assert got == body
    assert refusals > 3
    sender.close()
    receiver.close()
