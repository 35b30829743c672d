"""What scaling goes by, from those who measure it: a real agent's page, and pages of requests."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import threading
import time

import aiohttp
import pytest
from tests.agent.conftest import GIB, make_node, node
from tests.agent.programs import backlogged

from penstock.kube.control.figures import Agents, Kubelets, PageError, Pages, fetch

__all__ = ["make_node", "node"]  # fixtures


@contextlib.asynccontextmanager
async def at_work(make):
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
        source = make(session)
        running = asyncio.create_task(source.run())
        try:
            yield source
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def until(look, within_s: float = 40):
    end = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.1)
    return found


def test_use_of_a_quota_is_what_the_node_s_agent_says(node):
    """A tenant of 30 % that launches without a pause uses all of it; one that rests, nothing."""
    busy = {"namespace": "shop", "pod": "busy", "container": "main"}
    granted = node.tenant("busy", cores=300, memory=8 * GIB, labels=busy)
    node.tenant("idle", cores=300, memory=8 * GIB, labels={**busy, "pod": "idle"})
    node.launch(granted, *backlogged(60))
    url = f"http://127.0.0.1:{node.started['metrics_port']}/metrics"

    async def work():
        async with at_work(lambda session: Agents(session, 10**10)) as agents:
            agents.pages = {"node-1": url}
            agents.wanted = {"node-1", "node-2"}
            cores = await until(lambda: agents.cores_percent([("shop", "busy")]))
            memory = agents.memory_percent([("shop", "busy"), ("shop", "no-such-claim")])
            assert 60 < cores.value < 140
            assert 0 < memory.value < 100
            assert agents.cores_percent([("shop", "idle")]).value < 5
            assert agents.cores_percent([("other", "busy")]) is None
            assert agents.problems == {"node-2": "no agent of Penstock is known on node node-2"}
            assert time.monotonic_ns() - cores.at_ns < 10 * 10**9
            node.kill()
            await until(lambda: "node-1" in agents.problems)
            after = agents.cores_percent([("shop", "busy")])
            await asyncio.sleep(0.3)
            assert agents.cores_percent([("shop", "busy")]) == after, "it grows old, not new"

    asyncio.run(work())


class _Answers(http.server.BaseHTTPRequestHandler):
    """/counter grows by fifty a second; /hangs, /moved and /large are what pages should not be."""

    began = time.monotonic()

    def do_GET(self) -> None:
        body = b""
        if self.path == "/counter":
            body = b"done_total %f\n" % (50 * (time.monotonic() - self.began))
        elif self.path == "/hangs":
            time.sleep(5)
        elif self.path == "/large":
            body = b"x" * (9 << 20)
        self.send_response(302 if self.path == "/moved" else 200)
        if self.path == "/moved":
            self.send_header("Location", "/counter")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server():
    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    serving.daemon_threads = True
    thread = threading.Thread(target=serving.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{serving.server_port}"
    serving.shutdown()
    thread.join()
    serving.server_close()


def test_requests_a_second_are_a_counter_s_rate_and_bad_pages_hold_up_nobody(server):
    async def work():
        async with at_work(lambda session: Pages(session, 10**9)) as pages:
            good = (f"{server}/counter", "done_total")
            bad = {(f"{server}/{name}", "done_total") for name in ("hangs", "moved", "large")}
            pages.wanted = {good, *bad, (f"{server}/counter", "other"), ("http://[", "x")}
            rate = await until(lambda: pages.per_second(*good))
            assert 30 < rate.value < 70
            await until(lambda: len(pages.problems) == 5)
            assert "HTTP status 302" in pages.problems[f"{server}/moved"]
            assert "more than" in pages.problems[f"{server}/large"]
            assert all(pages.per_second(*one) is None for one in bad)
        async with aiohttp.ClientSession() as session:
            with pytest.raises(PageError, match=r"127\.0\.0\.1:9"):
                await fetch(session, "http://127.0.0.1:9/none")

    asyncio.run(work())


def test_a_kubelet_s_figure_is_as_old_as_it_was_first_heard():
    """Nodes' clocks differ from ours, and a kubelet repeats what it measured last."""
    kubelets = Kubelets(api=None)

    class Pod:
        uid = "u"

    def summary(stamp: str, nanocores: int):
        cpu = {"time": stamp, "usageNanoCores": nanocores}
        return {"pods": [{"podRef": {"uid": "u"}, "cpu": cpu, "memory": {"time": stamp}}]}

    kubelets.take(summary("2001-01-01T00:00:00Z", 500_000_000))
    first = kubelets.processors(Pod)
    kubelets.take(summary("2001-01-01T00:00:00Z", 500_000_000))
    assert kubelets.processors(Pod) == first
    kubelets.take(summary("2001-01-01T00:00:10Z", 250_000_000))
    assert kubelets.processors(Pod).value == 0.25
    assert kubelets.processors(Pod).at_ns > first.at_ns
    assert kubelets.memory_bytes(Pod) is None, "not told is not known"
