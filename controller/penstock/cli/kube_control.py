"""`penstock kube control`: policies, caps, replicas and explanations for the whole cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def control(
    namespace: Annotated[
        str,
        typer.Option(metavar="NAME", help="Where Penstock runs: of the lease and of its agents."),
    ] = "penstock",
    lease: Annotated[
        str, typer.Option(metavar="NAME", help="Of several processes the holder acts.")
    ] = "penstock-control",
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where kubelets ask whether it is well.")
    ] = "127.0.0.1:9473",
    pod_use: Annotated[
        Literal["metrics", "kubelets", "off"],
        typer.Option(
            help="Where cpu and memory of Pods are read: metrics.k8s.io, or each kubelet by the "
            "right to nodes/proxy."
        ),
    ] = "metrics",
    qps_pages: Annotated[
        Literal["namespace", "anywhere", "off"],
        typer.Option(
            help="Whose pages of requests are fetched: Pods and Services of the workload's own "
            "namespace, or any address."
        ),
    ] = "namespace",
    qps: Annotated[
        float,
        typer.Option(min=1, metavar="N", help="Requests a second to the API server, on average."),
    ] = 200,
    kubeconfig: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The cluster (default: that of this Pod).")
    ] = None,
) -> None:
    """Keep QuotaPolicies and caps, scale what they say, tell why Pods wait.

    Run two or more: one leads. Any of them may be killed at any time.
    """
    import asyncio

    from penstock.cli.address import read_address
    from penstock.cli.log import log_as
    from penstock.kube.controller.controller import Sources
    from penstock.kube.controller.controller_process import serve

    log = log_as("penstock kube control")
    sources = Sources(pod_use, qps_pages)
    asyncio.run(
        serve(
            namespace, lease, read_address(listen),
            kubeconfig=kubeconfig, sources=sources, qps=qps, report=log,
        )
    )  # fmt: skip
