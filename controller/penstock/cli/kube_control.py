"""`penstock kube control`: policies, caps, replicas and explanations for the whole cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
    from penstock.kube.control.process import serve

    log = log_as("penstock kube control")
    asyncio.run(serve(namespace, lease, read_address(listen), kubeconfig, log))
