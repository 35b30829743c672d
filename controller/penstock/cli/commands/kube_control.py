"""`penstock kube control`: the cluster controller for policies, caps, replicas, explanations."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from penstock.cli.options import Kubeconfig, Qps


def control(
    namespace: Annotated[
        str,
        typer.Option(metavar="NAME", help="Namespace of Penstock: of the lease and of its agents."),
    ] = "penstock",
    lease: Annotated[
        str, typer.Option(metavar="NAME", help="Lease for leader election: only its holder acts.")
    ] = "penstock-control",
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the health probes for the kubelet.")
    ] = "127.0.0.1:9473",
    pod_use: Annotated[
        Literal["metrics", "kubelets", "off"],
        typer.Option(
            help="Source of Pods' cpu and memory usage: metrics.k8s.io, or each kubelet (needs the "
            "right to nodes/proxy)."
        ),
    ] = "metrics",
    qps_pages: Annotated[
        Literal["namespace", "anywhere", "off"],
        typer.Option(
            help="Addresses from which request metrics may be fetched: Pods and Services in the "
            "workload's own namespace, or any address."
        ),
    ] = "namespace",
    qps: Qps = 200,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Run the controller: apply QuotaPolicies and caps, scale workloads, explain why Pods wait.

    Run two or more replicas; one of them leads. Any of them may be killed at any time.
    """
    import asyncio

    from penstock.cli.log import log_as
    from penstock.kube.controller.controller import Sources
    from penstock.kube.controller.controller_process import serve
    from penstock.model.address import read_address

    log = log_as("penstock kube control")
    sources = Sources(pod_use, qps_pages)
    asyncio.run(
        serve(
            namespace, lease, read_address(listen),
            kubeconfig=kubeconfig, sources=sources, qps=qps, report=log,
        )
    )  # fmt: skip
