"""Processor time of our cluster's parts at the size of a fleet, with nodes that are simulated.

    python bench/kube_fleet.py [--nodes 5000] [--devices 8] [--pods 120000] [--shares 64]

No Kubernetes cluster is started: the extender is the real program's, asked over HTTP as a scheduler
asks, and its lists are filled with objects as an API server sends them. The pages of agents come
from a real agent with so many tenants, and are served once for each node by a process beside the
one that is measured. All figures are processor time of the process that is measured, so that they
say little of what else the machine does; `load_1min` says how busy it was.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import multiprocessing
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import psutil
from aiohttp import web

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.kube.support.placing import GIB, devices, node, pod

from penstock.kube.controller.pod_metrics import Agents
from penstock.kube.extender.extender import Extender
from penstock.kube.objects import http_server as serving
from penstock.kube.objects.names import PLACED
from penstock.kube.objects.placement import write_placement
from penstock.kube.objects.workloads import read_pod as read_scaled
from penstock.model.share import Share
from penstock.node.admission.admit import Request
from penstock.node.rpc import AgentClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

MEMORY_BYTES = 80 * GIB
FIGURES_S = 60.0  # how long figures are collected: twice what they are good for
WINDOW_NS = 10 * 10**9
ASKS = 200  # Pods that are asked about, of each sort
SORTS = (
    "fits nowhere, all alike", "fits nowhere, each another", "fits nowhere, two devices",
    "fits everywhere",
)  # fmt: skip
CHANGES_A_SECOND = 100.0  # Pods that end elsewhere meanwhile


def placed_pod(number: int, nodes: int, count: int) -> dict[str, Any]:
    """As a list has it. Three of them share a device: 25 GiB and 30 % each."""
    where, at = f"bench-{number % nodes:04}", number // nodes % count
    placement = {"main": {f"GPU-{where}-{at}": Share(25 * GIB, 300)}}
    body = pod(f"p{number}", memory="25Gi", cores=300)
    body["metadata"] |= {
        "namespace": "bench", "uid": f"u{number}", "resourceVersion": "1",
        "annotations": {PLACED: write_placement(placement)},
    }  # fmt: skip
    body["spec"] |= {"nodeName": where, "priority": number % 3}
    return body


async def _extend(pipe: Connection, nodes: int, count: int, pods: int) -> None:
    """The extender, with its lists filled; until it is ended."""
    server: Any = None  # nothing is asked of it: lists are filled here, and nothing is bound
    extender = Extender(server, "penstock-scheduler", preemption=False)
    began_s = time.process_time()
    for number in range(nodes):
        name = f"bench-{number:04}"
        one = node(name, devices(name, count, MEMORY_BYTES))
        extender._nodes._take(("", name), extender._nodes._reduced(one))
    listed = []
    for number in range(pods):
        one = placed_pod(number, nodes, count)
        key = ("bench", one["metadata"]["name"])
        extender._pods._take(key, extender._pods._reduced(one))
        listed.append(key)
    filled_s = time.process_time() - began_s
    for cache in (extender._nodes, extender._pods):
        cache._have_all(set(cache.objects), "1")

    async def change() -> None:
        """Others' Pods end and come back, each on another node."""
        while True:
            key = random.choice(listed)  # noqa: S311 - no secret
            seen = extender._pods.objects[key]
            extender._pods._take(key, None)
            extender._pods._take(key, seen)
            await asyncio.sleep(1 / CHANGES_A_SECOND)

    async with serving.listening(extender.app(), ("127.0.0.1", 0)) as port:
        memory_bytes = psutil.Process().memory_info().rss
        pipe.send((port, filled_s, memory_bytes))
        changing = None
        while (order := await asyncio.to_thread(pipe.recv)) != "end":
            if order == "change" and changing is None:
                changing = asyncio.create_task(change())
            pipe.send(sum(psutil.Process().cpu_times()[:2]))


def _extend_in_process(pipe: Connection, *sizes: int) -> None:
    asyncio.run(_extend(pipe, *sizes))


def requests(sort: str) -> Iterator[dict[str, Any]]:
    """Pods that wait."""
    chance = random.Random(6)  # noqa: S311 - sizes, no secrets
    for number in range(ASKS):
        if sort == "fits everywhere":
            body = pod(f"w{number}", memory="1Gi", cores=50)
        elif sort == "fits nowhere, all alike":
            body = pod(f"w{number}", memory="30Gi", cores=300)
        elif sort == "fits nowhere, two devices":
            body = pod(f"w{number}", vgpu=2, memory="30Gi", cores=300)
        else:  # each another
            cores = chance.randint(200, 900)
            body = pod(f"w{number}", memory=f"{chance.randint(20, 70)}Gi", cores=cores)
        body["metadata"] |= {"namespace": "bench", "uid": f"w{number}"}
        yield body


def extender(options: argparse.Namespace) -> dict[str, Any]:
    """What a question of the scheduler costs, by what is asked for."""
    ours, theirs = multiprocessing.Pipe()
    sizes = (options.nodes, options.devices, options.pods)
    running = multiprocessing.Process(target=_extend_in_process, args=(theirs, *sizes), daemon=True)
    running.start()
    try:
        port, filled_s, memory_bytes = ours.recv()
        names = [f"bench-{number:04}" for number in range(options.nodes)]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        rows = [
            _ask(ours, connection, sort, names, changing=changing)
            for changing in (False, True)
            for sort in SORTS
        ]
        ours.send("end")
    finally:
        running.terminate()
        running.join()
    return {
        "filled_processor_s": round(filled_s, 1),
        "resident_mib": memory_bytes >> 20,
        "questions": rows,
    }


def _ask(
    pipe: Connection,
    connection: http.client.HTTPConnection,
    sort: str,
    names: list[str],
    *,
    changing: bool,
) -> dict[str, Any]:
    pipe.send("change" if changing else "look")
    before_s = pipe.recv()
    took_ms, size = [], 0
    for body in requests(sort):
        text = json.dumps({"Pod": body, "Nodes": None, "NodeNames": names}).encode()
        began_s = time.monotonic()
        connection.request("POST", "/filter", text, {"Content-Type": "application/json"})
        answer = connection.getresponse().read()
        took_ms.append(1e3 * (time.monotonic() - began_s))
        size = len(answer)
    pipe.send("look")
    used_s = pipe.recv() - before_s
    return {
        "what": sort,
        "pods_ending_a_second": CHANGES_A_SECOND if changing else 0,
        "processor_ms_a_pod": round(1e3 * used_s / ASKS, 2),
        "pods_a_processor_second": round(ASKS / used_s),
        "wall_median_ms": round(statistics.median(took_ms), 2),
        "answer_kib": size >> 10,
    }


def agent_page(shares: int) -> str:
    """What a real agent tells of so many tenants, an eighth of them on each device."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        folder = Path(place)
        folders = (f"--{name}-dir={folder / name}" for name in ("state", "meter", "cdi", "shim"))
        command = (sys.executable, "-m", "penstock", "agent", "--simulate=h200,8", *folders)
        agent = subprocess.Popen(
            [*command, "--metrics=127.0.0.1:0"], stderr=subprocess.PIPE, text=True
        )
        try:
            started = json.loads(agent.stderr.readline() if agent.stderr else "")
            with AgentClient.local(folder / "state" / "agent.sock") as client:
                for at in range(shares):
                    client.grant(Request(
                        command=("bench",), memory_bytes=[GIB], cores_permille=[10], name=f"t{at}",
                        lifetime="until-revoked", labels={"namespace": "bench", "pod": f"p{at}"},
                    ))  # fmt: skip
            time.sleep(3)  # its rounds have seen them
            connection = http.client.HTTPConnection("127.0.0.1", started["metrics_port"])
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()
        finally:
            agent.kill()
            agent.communicate()


async def _serve_pages(pipe: Connection, page: bytes) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=page, content_type="text/plain")

    app = web.Application()
    app.router.add_get("/{node}/metrics", answer)
    async with serving.listening(app, ("127.0.0.1", 0)) as port:
        pipe.send(port)
        await asyncio.Event().wait()


def _serve_in_process(pipe: Connection, page: bytes) -> None:
    asyncio.run(_serve_pages(pipe, page))


async def _collect(options: argparse.Namespace, port: int, page: str) -> dict[str, Any]:
    """As `control` does while every share of every node is scaled by its use."""
    pods = [
        read_scaled({
            "metadata": {"namespace": "bench", "name": f"p{at}", "uid": f"{name}-{at}"},
            "spec": {"nodeName": name, "containers": []},
        })
        for name in (f"bench-{number:04}" for number in range(options.nodes))
        for at in range(options.shares)
    ]  # fmt: skip
    ages_s: dict[str, float] = {}
    came: list[str] = []
    failed: list[str] = []
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=10)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        agents = Agents(session, WINDOW_NS)
        ask = agents._ask

        async def noted(name: str) -> str:
            why = await ask(name)
            if why:
                failed.append(why)
            else:
                ages_s[name] = time.monotonic()
                came.append(name)
            return why

        agents._polling._ask = noted
        agents.pages = {
            f"bench-{number:04}": f"http://127.0.0.1:{port}/bench-{number:04}/metrics"
            for number in range(options.nodes)
        }
        agents.want([one for one in pods if one is not None])
        running = asyncio.create_task(agents.run())
        await asyncio.sleep(30)  # every page once
        came.clear()
        failed.clear()
        began_s, used_s = time.monotonic(), time.process_time()
        oldest_s = 0.0
        while time.monotonic() - began_s < FIGURES_S:
            await asyncio.sleep(5)
            oldest_s = max(oldest_s, time.monotonic() - min(ages_s.values()))
        took_s, used_s = time.monotonic() - began_s, time.process_time() - used_s
        known = len(ages_s)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    alone = Agents(session, WINDOW_NS)
    alone.want([one for one in pods[: options.shares] if one is not None])
    began_s = time.process_time()
    for _ in range(100):
        alone.take("bench-0000", page)
    return {
        "page_kib": len(page) >> 10,
        "pages_known": known,
        "pages_a_second": round(len(came) / took_s, 1),
        "pages_failed": len(failed),
        "processor_percent": round(100 * used_s / took_s, 1),
        "processor_ms_a_page": round(1e3 * used_s / max(1, len(came)), 3),
        "oldest_figure_s": round(oldest_s, 1),
        "read_one_page_ms": round(10 * (time.process_time() - began_s), 3),
    }


def figures(options: argparse.Namespace) -> dict[str, Any]:
    """What it takes to know the use of all shares."""
    page = agent_page(options.shares)
    ours, theirs = multiprocessing.Pipe()
    serving_pages = multiprocessing.Process(
        target=_serve_in_process, args=(theirs, page.encode()), daemon=True
    )
    serving_pages.start()
    try:
        return asyncio.run(_collect(options, ours.recv(), page))
    finally:
        serving_pages.terminate()
        serving_pages.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--pods", type=int, default=120_000)
    parser.add_argument("--shares", type=int, default=64, help="a node, all of them scaled")
    options = parser.parse_args()
    found = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": f"{os.cpu_count()} processors, {platform.machine()}, Linux "
        f"{platform.release()}, Python {platform.python_version()}",
        "load_1min": round(os.getloadavg()[0], 1),
        "nodes": options.nodes, "devices": options.nodes * options.devices,
        "pods": options.pods, "shares_a_node": options.shares,
        "extender": extender(options),
        "figures": figures(options),
    }  # fmt: skip
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
