"""Samples: pages of metrics, rates, processor time and memory of real process trees."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time

import pytest

from penstock.autoscaling.process_tree import children_of_all, descendants, memory_bytes_of
from penstock.autoscaling.request_rate import PageUnreadableError, Requests, fetch, read_metric
from penstock.autoscaling.sampling import Processor
from penstock.model import PenstockError
from penstock.scheduling.replicas.rates import Rate

from .conftest import wait_until

SECOND_NS = 10**9


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("hits_total 5", (5, True)),
        ("# TYPE hits_total gauge\nhits_total 5", (5, False)),
        ('# TYPE hits counter\nhits_total 5 # {trace="a"} 1', (5, True)),
        ('hits_total{a="}",b="\\""} 2 1700000000000\nhits_total{a="x y"} 3.5', (5.5, True)),
        ("hits_totals 5\nmore_hits_total 6", None),
        ('hits_total NaN\nhits_total{a="1"} 1e3', (1000, True)),
        ("hits_total +Inf", None),
        ("hits_total five", None),
        ("# hits_total 5", None),
        ("", None),
    ],
)
def test_a_metric_is_the_sum_of_its_series_and_knows_whether_it_counts(text, found):
    assert read_metric(text, "hits_total") == found


def test_a_rate_is_known_after_half_a_window_and_survives_a_restart_of_the_counter():
    rate = Rate(10 * SECOND_NS)
    known = []
    for second in range(31):
        # The server restarts at 20: its counter begins anew.
        rate.add(second * SECOND_NS, 100 + 7 * second if second < 20 else 7 * (second - 20))
        known.append(rate.per_second)
    assert known[4] is None
    assert known[5] == known[19] == pytest.approx(7)
    assert known[20] is known[24] is None
    assert known[25] == known[30] == pytest.approx(7)


def test_a_rate_ignores_a_clock_that_runs_backwards():
    rate = Rate(SECOND_NS)
    for at_s, total in ((100, 5), (101, 6), (1, 7), (2, 9)):
        rate.add(at_s * SECOND_NS, total)
    assert rate.per_second == 2


def test_processor_time_of_a_tree_counts_children_that_come_and_go_once():
    script = (
        "import subprocess, sys, time\n"
        "burn = 'import time\\nwhile time.process_time() < 0.25: pass'\n"
        "sys.stdin.readline()\n"
        "for _ in range(4): subprocess.run([sys.executable, '-c', burn])\n"
        "print('done', flush=True); sys.stdin.readline()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        processor = Processor(Rate(SECOND_NS))

        def look():
            tree = {process.pid, *descendants([process.pid], children_of_all())}
            processor.add(time.monotonic_ns(), tree)

        look()
        process.stdin.write("go\n")
        process.stdin.flush()
        done = threading.Thread(target=process.stdout.readline)
        done.start()
        while done.is_alive():
            look()
            time.sleep(0.03)
        look()
        process.stdin.write("end\n")
        process.stdin.close()
    # 4 x 0.25 s and the start of four interpreters; twice that were it counted again as reaped
    assert 0.95e9 <= processor.total_ns <= 1.8e9


def test_memory_of_a_process_is_what_it_uses():
    script = "import sys; held = bytearray(b'x' * (64 << 20)); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        assert 64 << 20 <= memory_bytes_of(process.pid) <= 160 << 20
        process.communicate(b"\n")
    assert memory_bytes_of(process.pid) is None


@contextlib.contextmanager
def server_that(answers):
    """A TCP server whose connections are handled by `answers`; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        held = []

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    held.append(connection)
                    threading.Thread(target=answers, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/metrics"
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in held:
            connection.close()


def drip(connection):
    with contextlib.suppress(OSError):
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
        for _ in range(200):
            connection.sendall(b"hits_total 1\n")
            time.sleep(0.05)


def close_at_once(connection):
    connection.close()


def say_nonsense(connection):
    with contextlib.suppress(OSError):
        connection.sendall(b"\xff\xfe nonsense \0\n")
        connection.close()


def hang(connection):
    """Answers nothing."""


@pytest.mark.parametrize("answers", [hang, drip, close_at_once, say_nonsense])
def test_a_page_that_cannot_be_read_is_given_up_in_time(answers):
    with server_that(answers) as url:
        began = time.monotonic()
        with pytest.raises(PageUnreadableError, match="http"):
            fetch(url, timeout_s=0.5)
        assert time.monotonic() - began < 5


def test_a_server_that_hangs_delays_nothing_and_gives_no_figure():
    with server_that(hang) as url:
        requests = Requests(url, "hits_total", SECOND_NS)
        began = time.monotonic()
        assert requests.total() is None
        assert time.monotonic() - began < 1
        wait_until(requests.problems)
        assert requests.total() is None


def test_each_replica_has_a_page_of_its_own(tmp_path):
    for number in (8001, 8002):
        (tmp_path / f"{number}.prom").write_text(f"# TYPE qps gauge\nqps {number}\n")
    requests = Requests(f"file://{tmp_path}/{{replica+8000}}.prom", "qps", SECOND_NS)
    assert requests.each
    wait_until(lambda: requests.of_replica(1) and requests.of_replica(2))
    assert (requests.of_replica(1).value, requests.of_replica(2).value) == (8001, 8002)
    requests.of_replica(3)
    assert "8003.prom" in wait_until(requests.problems)[0]


@pytest.mark.parametrize("url", ["", "metrics", "ftp://host/", "javascript:1"])
def test_a_url_that_leads_nowhere_is_refused(url):
    with pytest.raises(PenstockError, match="is not http"):
        Requests(url, "qps", SECOND_NS)
