"""Replicas follow real load (processor time, vGPU use, requests) up and down without flapping."""

from __future__ import annotations

import contextlib
import http.server
import threading
import time

import pytest

from .conftest import wait_until

pytestmark = pytest.mark.timed


def assert_one_rise_and_one_fall(counts):
    peak = counts.index(max(counts))
    assert counts[: peak + 1] == sorted(counts[: peak + 1])
    assert counts[peak:] == sorted(counts[peak:], reverse=True)


def test_processor_time_scales_from_one_to_four_and_back(bench):
    bench.policy()
    bench.scale("--cpu-request=0.2")
    eldest = bench.wait_for(1)
    bench.orders(cpu=0.6)  # 300 % of what one replica requests
    bench.wait_for(4)
    time.sleep(3)
    assert len(bench.running()) == 4
    bench.orders()
    assert bench.wait_for(1) == eldest  # the youngest were ended, by SIGTERM
    assert {number for number, _, word in bench.log if word == "term"} == {2, 3, 4}
    assert_one_rise_and_one_fall(bench.counts())
    assert any("cpu" in line and "is above 80" in line for line in bench.said)


def test_vgpu_use_scales_from_one_to_four_and_back(bench):
    bench.policy(metrics="cores: {up: 85, down: 30}")
    bench.scale()
    bench.wait_for(1)
    bench.orders(cores=3.0)  # quotas of one replica
    bench.wait_for(4)
    bench.orders()
    bench.wait_for(1)
    assert_one_rise_and_one_fall(bench.counts())
    assert any("vGPU cores" in line and "is above 85" in line for line in bench.said)


def test_vgpu_memory_adds_replicas(bench):
    bench.policy(metrics="vgpuMemory: {up: 60, down: 20}", most=2)
    bench.scale()
    bench.wait_for(1)
    bench.orders(mebibytes=6 << 10)
    bench.wait_for(2)
    assert any("vGPU memory" in line and "is above 60" in line for line in bench.said)


class Balancer(http.server.ThreadingHTTPServer):
    """A load balancer's page: requests counted at `rate` a second."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Page)
        self.lock = threading.Lock()
        self.rate, self.count, self.counted_at = 0.0, 0.0, time.monotonic()

    def set_rate(self, rate):
        with self.lock:
            self.read()
            self.rate = rate

    def read(self):
        now = time.monotonic()
        self.count += self.rate * (now - self.counted_at)
        self.counted_at = now
        return self.count


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with self.server.lock:
            count = self.server.read()
        body = (
            "# HELP http_requests_total Requests.\n# TYPE http_requests_total counter\n"
            f'http_requests_total{{code="200",path="/a}}b"}} {count / 2}\n'
            f'http_requests_total{{code="500"}} {count / 2}\n'
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def balancer():
    server = Balancer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_requests_scale_from_none_to_four_and_back(bench, balancer):
    bench.policy(least=0, metrics="qps: {up: 100, down: 20}")
    port = balancer.server_address[1]
    url = f"http://127.0.0.1:{port}/metrics"
    bench.scale(f"--qps-url={url}", "--qps-metric=http_requests_total")
    time.sleep(2)
    assert not bench.running()
    balancer.set_rate(350)
    bench.wait_for(4)
    balancer.set_rate(0)
    wait_until(lambda: not bench.tenants(), "no replica")
    assert_one_rise_and_one_fall(bench.counts())
