"""The sources of figures for scaling: a real agent's page, and pages of requests."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import threading
import time

import aiohttp
import pytest
from tests.agent.conftest import GIB, make_node, node
from tests.agent.support.programs import backlogged

from penstock.autoscaling.request_rate import read_metric
from penstock.kube.controller.pod_metrics import Agents, Kubelets, PodMetrics, source_of
from penstock.kube.controller.polling import Polling
from penstock.kube.controller.request_metrics import (
    Page,
    PageError,
    Pages,
    address_of,
    fault_of,
    fetch,
    pages_of,
)
from penstock.kube.objects.workloads import read_pod, read_workload

__all__ = ["make_node", "node"]  # fixtures


def a_pod(name: str, node: str = "node-1", **spec: object):
    return read_pod(
        {
            "metadata": {"namespace": "shop", "name": name, "uid": name},
            "spec": {"nodeName": node, "containers": [], **spec},
            "status": {"podIP": "10.0.0.7"},
        }
    )


def a_workload(url: str, namespace: str = "team-a"):
    notes = {"penstock.io/qps-url": url, "penstock.io/qps-metric": "done_total"}
    metadata = {"namespace": namespace, "name": "w", "uid": "w", "resourceVersion": "1"}
    one = {"metadata": {**metadata, "annotations": notes}, "spec": {}}
    return read_workload("Deployment", one)


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


def test_use_of_a_quota_is_what_the_nodes_agent_reports(node):
    """A tenant of 30 % that launches without a pause uses its whole share, an idle one nothing."""
    busy = {"namespace": "shop", "pod": "busy", "container": "main"}
    granted = node.tenant("busy", cores=300, memory=8 * GIB, labels=busy)
    node.tenant("idle", cores=300, memory=8 * GIB, labels={**busy, "pod": "idle"})
    node.launch(granted, *backlogged(60))
    url = f"http://127.0.0.1:{node.started['metrics_port']}/metrics"

    async def work():
        async with at_work(lambda session: Agents(session, 10**10)) as agents:
            agents.pages = {"node-1": url}
            agents.want([a_pod("busy"), a_pod("idle"), a_pod("else", node="node-2")])
            cores = await until(lambda: agents.cores_percent([("shop", "busy")]))
            memory = agents.memory_percent([("shop", "busy"), ("shop", "no-such-claim")])
            assert 60 < cores.value < 140
            assert 0 < memory.value < 100
            assert agents.cores_percent([("shop", "idle")]).value < 5
            assert agents.cores_percent([("other", "busy")]) is None
            assert agents.problem("node-2") == "no agent of Penstock is known on node node-2"
            assert not agents.problem("node-1")
            assert time.monotonic_ns() - cores.at_ns < 10 * 10**9
            node.kill()
            await until(lambda: agents.problem("node-1"))
            after = agents.cores_percent([("shop", "busy")])
            await asyncio.sleep(0.3)
            assert agents.cores_percent([("shop", "busy")]) == after, "it grows old, not new"

    asyncio.run(work())


class _Answers(http.server.BaseHTTPRequestHandler):
    """A server of pages: /counter grows by fifty a second; /hangs, /moved and /large are faulty."""

    began = time.monotonic()

    def do_GET(self) -> None:
        body = b""
        if self.path == "/counter":
            body = b"done_total %f\n" % (50 * (time.monotonic() - self.began))
        elif self.path.startswith("/hangs"):
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


def test_requests_a_second_are_the_rate_of_a_counter_and_bad_pages_delay_nothing(server):
    async def work():
        async with at_work(lambda session: Pages(session, 10**9, None, "anywhere")) as pages:
            good = Page("a", f"{server}/counter", "done_total")
            bad = {
                name: Page("a", f"{server}/{name}", "done_total")
                for name in ("hangs", "moved", "large")
            }
            others = [
                Page("a", f"{server}/counter", "other"),
                Page("a", "http://[", "x"),
            ]
            pages.want([good, *bad.values(), *others])
            rate = await until(lambda: pages.per_second(good))
            assert 30 < rate.value < 70
            await until(lambda: all(map(pages.problem, [*bad.values(), *others])))
            assert "HTTP status 302" in pages.problem(bad["moved"])
            assert "more than" in pages.problem(bad["large"])
            assert all(pages.per_second(one) is None for one in bad.values())
        async with aiohttp.ClientSession() as session:
            with pytest.raises(PageError, match=r"127\.0\.0\.1:9"):
                await fetch(session, "http://127.0.0.1:9/none")

    asyncio.run(work())


def test_a_kubelets_figure_is_as_old_as_its_first_report():
    """The clocks of nodes differ from ours, and a kubelet repeats its last measurement."""
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


def test_pods_use_is_what_the_metrics_api_says_all_containers_together():
    metrics = PodMetrics(api=None)

    def answer(stamp: str, cpu: str):
        usage = {"cpu": cpu, "memory": "64Mi"}
        where = {"namespace": "shop", "name": "p"}
        return [{"metadata": where, "timestamp": stamp, "containers": [{"usage": usage}] * 2}]

    metrics.take(answer("1", "250000000n"))
    first = metrics.processors(a_pod("p"))
    assert first.value == 0.5
    assert metrics.memory_bytes(a_pod("p")).value == 128 << 20
    metrics.take(answer("1", "250000000n"))
    assert metrics.processors(a_pod("p")) == first, "said again it is as old as it was"
    metrics.take(answer("2", "1"))
    assert metrics.processors(a_pod("p")).value == 2
    assert metrics.processors(a_pod("q")) is None
    metrics.take([{"metadata": {"namespace": "shop", "name": "q"}, "containers": [{}]}])
    assert metrics.processors(a_pod("q")) is None


def test_sources_that_are_switched_off_are_not_asked_and_reported_as_off():
    source = source_of("off", None)
    assert source.processors(a_pod("p")) is source.memory_bytes(a_pod("p")) is None
    assert "control.podUse is off" in source.problem(a_pod("p"))
    fault = fault_of(a_workload("http://{pod}:9000/"), "off", ("u", "m"))
    assert "control.qpsPages is off" in fault


OWN = [
    "http://{pod}:9000/metrics", "https://{pod}/", "http://gateway:9000/metrics",
    "http://gateway.team-a/m", "http://gateway.team-a.svc:80/m",
    "https://gateway.team-a.svc.cluster.local/m?a=b",
]  # fmt: skip
FOREIGN = [
    "http://169.254.169.254/latest/meta-data", "http://127.0.0.1:10248/", "http://[::1]/",
    "http://localhost.team-b/", "http://gateway.team-b:9000/metrics", "http://10.96.0.1/",
    "http://kubernetes.default.svc/", "http://example.com/", "http://{pod}.example.com/",
    "http://{pod}@example.com/", "http://example.com/{pod}", "http://gateway.team-a.example.com/",
    "http://user:word@gateway/", "ftp://{pod}/", "file:///etc/passwd", "http://{pod}:x/", "//{pod}",
    "http://{pod}\\@example.com/", "http:///{pod}", "http://2130706433/",
]  # fmt: skip


def test_only_pages_of_pods_and_services_in_the_workloads_own_namespace_are_fetched():
    for url in OWN:
        assert not fault_of(a_workload(url), "namespace", ("u", "m")), url
    for url in FOREIGN:
        assert fault_of(a_workload(url), "namespace", ("u", "m")), url
    assert not fault_of(a_workload("http://example.com/"), "anywhere", ("u", "m"))
    own, host = a_pod("own"), a_pod("host", hostNetwork=True)
    (page,) = pages_of(a_workload("http://{pod}:9000/metrics"), [own, host])
    assert page.address == own.address, "a Pod on its node's network has the node's address"


def test_a_service_is_asked_by_its_address_only_if_it_leads_to_pods_of_its_namespace():
    spec = {"clusterIP": "10.96.0.7", "selector": {"app": "a"}}
    assert address_of({"spec": spec}) == "10.96.0.7"
    for more in (
        {"type": "ExternalName", "externalName": "metadata.internal"},
        {"selector": None},
        {"clusterIP": "None"},
        {"clusterIP": ""},
    ):
        assert not address_of({"spec": {**spec, **more}})


def test_pages_of_one_namespace_that_hang_delay_no_other_namespace(server):
    """With two hundred such pages, figures of another namespace are only seconds old."""

    async def work():
        async with at_work(lambda session: Pages(session, 10**9, None, "anywhere")) as pages:
            slow = [Page("slow", f"{server}/hangs?{number}", "m") for number in range(200)]
            good = Page("good", f"{server}/counter", "done_total")
            pages.want([*slow, good])
            await until(lambda: pages.per_second(good))
            ages = []
            for _ in range(60):
                await asyncio.sleep(0.1)
                ages.append(time.monotonic_ns() - pages.per_second(good).at_ns)
            assert max(ages) < 5 * 10**9
            assert sum(map(bool, map(pages.problem, slow))) < 30, "four at a time, and left alone"

    asyncio.run(work())


def test_a_server_that_hangs_is_asked_less_often_and_one_that_refuses_at_once_is_not():
    async def work():
        asked = {"hangs": 0, "refuses": 0, "raises": 0}

        async def ask(name: str) -> str:
            asked[name] += 1
            if name == "raises":
                raise LookupError(name)
            await asyncio.sleep(0.2 if name == "hangs" else 0)
            return "no"

        polling = Polling(ask, 0.05, at_once=8, per_second=1000)
        polling.wanted = set(asked)
        running = asyncio.create_task(polling.run())
        await asyncio.sleep(2.5)
        assert asked["hangs"] <= 3
        assert asked["refuses"] >= 8
        assert asked["raises"] >= 8, "whatever it raises, it is asked again"
        assert polling.problems == {"hangs": "no", "refuses": "no", "raises": "LookupError: raises"}
        polling.wanted = {"refuses"}
        await until(lambda: set(polling.problems) == {"refuses"})
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(work())


def test_a_page_made_to_be_slow_to_parse_is_parsed_at_once():
    """Braces without an end: each line used to be searched to the end of the page."""
    began_s = time.process_time()
    assert read_metric("m{\n" * 200_000, "m") is None
    assert read_metric('m{a="\n' * 100_000, "m") is None
    assert time.process_time() - began_s < 5


def test_only_the_metrics_of_scaled_workloads_are_kept_of_an_agents_page():
    agents = Agents(None, 10**10)
    line = 'penstock_tenant_{}{{device_uuid="g",namespace="{}",node="n",pod="{}",tenant="t"}} {}\n'
    page = "".join(
        line.format(metric, namespace, "p", value)
        for namespace in ("shop", "other")
        for metric, value in (("memory_quota_bytes", 100), ("memory_used_bytes", "2.5e1"))
    )
    agents.want([a_pod("p")])
    for _ in range(2):  # what is known of the first page is looked up for the second
        agents.take("node-1", f"# HELP x\n{page}other 1\n")
    assert agents.memory_percent([("shop", "p")]).value == 25
    assert agents.memory_percent([("other", "p")]) is None
    assert list(agents._shares) == [("shop", "p")]
    agents.want([a_pod("p"), a_pod("q")])
    agents.take("node-1", page.replace('pod="p"', 'pod="q"').removesuffix("\n"))
    assert agents.memory_percent([("shop", "q")]).value == 25


def test_a_forgotten_share_is_known_again_when_its_agent_returns():
    agents = Agents(None, 10**10)
    line = 'penstock_tenant_{}{{namespace="shop",pod="p",tenant="t"}} {}\n'
    page = line.format("memory_quota_bytes", 100) + line.format("memory_used_bytes", 50)
    agents.want([a_pod("p")])
    agents.take("node-1", page)
    for shares in agents._shares.values():
        for share in shares.values():
            share.at_ns -= 200 * 10**9
    agents.want([a_pod("p")])
    assert agents.memory_percent([("shop", "p")]) is None
    agents.take("node-1", page)
    assert agents.memory_percent([("shop", "p")]).value == 50
