"""The web server of the page: whom it answers, with which headers, and what viewers cost."""

from __future__ import annotations

import contextlib
import socket
import threading
from urllib.parse import urlsplit

import pytest
from tests.pool.support.manager_process import wait_until
from tests.web.support.sources import state
from tests.web.support.viewer import Viewer, ask

from penstock.model import PenstockError
from penstock.web import server as server_module
from penstock.web import states as states_module
from penstock.web.address import Address
from penstock.web.server import FILES


class Counted:
    """A source that counts its calls, and waits for `gate`."""

    def __init__(self, size=1):
        self.calls = 0
        self.size = size
        self.gate = threading.Event()
        self.gate.set()
        self.error = None

    def __call__(self, query):
        self.calls += 1
        self.gate.wait(20)
        if self.error is not None:
            raise self.error
        return {"n": self.calls, "find": query.find, "filling": "x" * self.size}


# Answers


@pytest.mark.parametrize("path", [*(f"/{name}" for name in FILES), "/other", "/events?page=x"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_every_answer_forbids_scripts_of_others_and_frames(serve, path, method):
    answer = ask(serve(lambda _: state()).url, path, method)
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_the_page_has_no_script_or_style_inside_that_its_policy_would_forbid(serve):
    text = ask(serve(lambda _: state()).url).text
    assert "style=" not in text
    assert "<style" not in text
    assert text.count("<script") == text.count('<script type="module" src="page.js">') == 1


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_a_page_takes_no_orders(serve, method):
    answer = ask(serve(lambda _: state()).url, "/", method)
    assert answer.status == 405
    assert "penstock pool" in answer.text


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:1", 200), ("[::1]:1", 200), ("localhost", 200), ("LocalHost:80", 200),
     ("evil.example", 421), ("evil.example:9480", 421), ("localhost.evil.example", 421),
     ("", 421), ("127.0.0.1.evil.example", 421), ("[evil.example]", 421),
     ("127.0.0.1:1@evil.example", 421), ("localhost:x", 421), ("[::1]evil.example", 421)],
)  # fmt: skip
def test_a_name_of_strangers_that_leads_here_is_not_answered(serve, host, status):
    url = serve(lambda _: state()).url
    assert ask(url, "/", Host=host).status == status
    if status != 200:
        assert ask(url, "/events", Host=host).status == status


def test_what_is_no_http_is_refused_and_not_reported_as_a_fault(serve, capfd):
    url = urlsplit(serve(lambda _: state()).url)
    for junk in (
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\n:\r\n\r\n",
    ):
        with socket.create_connection((url.hostname, url.port), 10) as client:
            client.sendall(junk + b"\r\n\r\n")
            assert b"400" in client.recv(4096)
    assert ask(url.geturl()).status == 200
    assert "Traceback" not in "".join(capfd.readouterr())


def test_on_an_open_address_the_name_of_the_machine_is_answered_too(serve):
    opened = serve(lambda _: state(), Address("127.0.0.1", 0, is_open=True))
    closed = serve(lambda _: state())
    name = socket.gethostname()
    assert ask(opened.url, "/", Host=name).status == 200
    assert ask(closed.url, "/", Host=name).status == (200 if name == "localhost" else 421)
    assert ask(opened.url, "/", Host="evil.example").status == 421


def test_pages_of_other_sites_may_not_open_a_stream(serve):
    url = serve(lambda _: state()).url
    assert ask(url, "/events", Sec_Fetch_Site="cross-site").status == 403
    assert ask(url, "/events", Sec_Fetch_Site="same-site").status == 403


@pytest.mark.parametrize("query", ["page=-1", "page=x", "page=999999999", "page=%C2%B2",
                                   f"find={'x' * 129}"])  # fmt: skip
def test_an_invalid_query_is_refused(serve, query):
    source = Counted()
    assert ask(serve(source).url, f"/events?{query}").status == 400
    assert source.calls == 0


def test_a_port_in_use_is_named_with_what_to_do(serve):
    first = serve(lambda _: state())
    with pytest.raises(PenstockError, match=r"in use.*--web-address"):
        serve(lambda _: state(), Address("127.0.0.1", urlsplit(first.url).port))


# Viewers


def test_viewers_with_the_same_query_share_one_answer(serve):
    source = Counted()
    source.gate.clear()
    server = serve(source)
    viewers = [Viewer(server.url, find="gpu").begin() for _ in range(10)]
    source.gate.set()
    only = ("state", {"n": 1, "find": "gpu", "filling": "x"})
    assert [one.event() for one in viewers] == [only] * 10
    for one in viewers:
        one.close()


def test_nothing_is_asked_while_nobody_looks(serve):
    source = Counted()
    server = serve(source)
    assert ask(server.url).status == 200
    assert source.calls == 0
    with Viewer(server.url) as viewer:
        assert viewer.event()[0] == "state"
    wait_until(lambda: not server._states._shared)
    assert server._states._until_due() is None


def test_a_stream_too_many_is_told_so(serve, monkeypatch):
    monkeypatch.setattr(server_module, "MOST_STREAMS", 2)
    server = serve(Counted())
    with Viewer(server.url) as first, Viewer(server.url) as second:
        assert first.event()[0] == second.event()[0] == "state"
        with Viewer(server.url) as third:
            assert third.event() == ("full", 2)
            assert third.event() is None
    wait_until(lambda: server._streams == 0)
    with Viewer(server.url) as again:
        assert again.event()[0] == "state"


def test_a_viewer_that_reads_nothing_is_dropped_and_others_go_on(serve, monkeypatch):
    monkeypatch.setattr(server_module, "SLOWEST_WRITE_S", 0.3)
    monkeypatch.setattr(states_module, "PERIOD_S", 0.01)
    source = Counted(size=4 << 20)
    server = serve(source)
    slow = Viewer(server.url, buffer=4096, find="slow").begin()
    with Viewer(server.url) as viewer:
        states = viewer.states()
        assert next(states)["n"] > 0
        wait_until(lambda: next(states) and server._streams == 1)
        assert next(states)["n"] > 1
    slow.close()


def test_a_viewer_that_is_slow_gets_the_newest_state_not_all_that_it_missed(serve, monkeypatch):
    monkeypatch.setattr(states_module, "PERIOD_S", 0.001)
    monkeypatch.setattr(states_module, "RESTS", 0)
    monkeypatch.setattr(states_module, "LEAST_REST_S", 0.001)
    source = Counted(size=1 << 20)
    server = serve(source)
    with Viewer(server.url, buffer=4096) as viewer:
        states = viewer.states()
        first = next(states)["n"]
        wait_until(lambda: source.calls > first + 60)
        made = source.calls
        read = []
        while not read or read[-1] < made:
            read.append(next(states)["n"])
        assert read == sorted(read)
        assert len(read) < 40  # buffers of the kernel hold a few


def test_a_connection_without_a_request_is_closed(serve, monkeypatch):
    monkeypatch.setattr(server_module, "FIRST_REQUEST_S", 0.2)
    where = urlsplit(serve(Counted()).url)
    with socket.create_connection((where.hostname, where.port), timeout=20) as silent:
        silent.sendall(b"GET / HT")
        with contextlib.suppress(ConnectionResetError):
            assert silent.recv(1) == b""


def test_connections_beyond_the_bound_are_closed_at_once(serve, monkeypatch):
    monkeypatch.setattr(server_module, "MOST_CONNECTIONS", 2)
    server = serve(Counted())
    with Viewer(server.url) as first, Viewer(server.url) as second:
        assert first.event()[0] == second.event()[0] == "state"
        with pytest.raises(ConnectionError):
            ask(server.url)
    wait_until(lambda: server._streams == 0)
    wait_until(lambda: not server._runner.server.connections)
    assert ask(server.url).status == 200


# Sources that fail


def test_a_source_that_fails_is_a_problem_of_the_page_until_it_answers_again(serve, monkeypatch):
    monkeypatch.setattr(states_module, "PERIOD_S", 0.01)
    source = Counted()
    server = serve(source)
    with Viewer(server.url) as viewer:
        assert viewer.event()[0] == "state"
        source.error = PenstockError("this manager does not lead the pool", "m2 leads it")
        while (event := viewer.event())[0] == "state":
            pass
        problem = {"what": "this manager does not lead the pool", "why": "m2 leads it"}
        assert event == ("problem", problem)
        source.error = RuntimeError("secret")
        event = viewer.event()
        assert event[0] == "problem"
        assert "secret" not in str(event)
        assert ("web failed", {"reason": "RuntimeError: secret"}) in server.failures
        source.error = None
        assert viewer.event()[0] == "state"


def test_a_server_that_stops_ends_its_streams(serve):
    server = serve(Counted())
    with Viewer(server.url) as viewer:
        assert viewer.event()[0] == "state"
        server.stop()
        assert not [one for one in iter(viewer.event, None) if one[0] == "problem"]
