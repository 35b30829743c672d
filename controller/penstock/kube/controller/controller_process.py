"""Controller process: one of several replicas, only one of which leads."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from penstock.kube.controller.controller import Controller
from penstock.kube.controller.leader_election import Leader
from penstock.kube.controller.request_metrics import PAGE_TIMEOUT_S
from penstock.kube.objects import http_server as serving
from penstock.kube.objects.api_client import Api

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.kube.controller.controller import Sources


async def serve(
    namespace: str,
    lease: str,
    address: tuple[str, int],
    *,
    kubeconfig: Path | None,
    sources: Sources,
    qps: float,
    report: Callable[..., None],
) -> None:
    """Serves until SIGTERM.

    Args:
        namespace: Namespace of the lease, and of our agents' Pods.
        lease: Name of the lease.
        address: Listening address for the kubelet's probes.
        kubeconfig: The cluster's kubeconfig; None for the cluster in which this process runs.
        sources: The sources of metrics for scaling.
        qps: Requests a second to the API server, on average.
        report: Called with log events and their fields.

    Raises:
        PenstockError: no cluster is configured, or the address cannot be used.
    """
    identity = f"{os.uname().nodename}_{secrets.token_hex(4)}"
    timeout = aiohttp.ClientTimeout(total=PAGE_TIMEOUT_S)
    async with (
        await Api.connect(kubeconfig, qps=qps, burst=int(2 * qps)) as api,
        # Each source limits its own connections, and no cookie of one page is sent to another.
        aiohttp.ClientSession(
            timeout=timeout,
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as session,
    ):
        leader = Leader(api, namespace, lease, identity, report=report)
        acting: list[Controller] = []

        async def act() -> None:
            # Each term gets a new controller, because the state of an earlier term is stale.
            acting[:] = [
                Controller(
                    api, leader, session, namespace=namespace, sources=sources, report=report
                )
            ]
            await acting[0].act()

        app = web.Application()
        serving.probes(app, lambda: acting[0].unready() if acting and leader.leads else "")
        async with serving.listening(app, address) as port:
            report("started", port=port, identity=identity, server=api.server)
            report("stopping", signal=await serving.until_stopped(leader.run(act)))
