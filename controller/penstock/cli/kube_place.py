"""`penstock kube place`: a scheduler's extender."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

import typer


class Policy(str, Enum):
    """What is filled first."""

    value: Literal["binpack", "spread"]
    binpack = "binpack"
    spread = "spread"


def place(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the scheduler asks.")
    ] = "127.0.0.1:9471",
    scheduler: Annotated[
        str, typer.Option(metavar="NAME", help="Profile of the scheduler that asks.")
    ] = "penstock-scheduler",
    nodes: Annotated[
        Policy, typer.Option(help="Of nodes: fill one after the other, or all alike.")
    ] = Policy.binpack,
    devices: Annotated[Policy, typer.Option(help="The same of a node's devices.")] = Policy.binpack,
    preemption: Annotated[
        Literal["on", "off"],
        typer.Option(help="Whether Pods are evicted for Pods of a higher priority."),
    ] = "on",
    probes: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where kubelets ask whether it is well, and nobody for more (default: nowhere).",
        ),
    ] = "",
    lease: Annotated[
        str,
        typer.Option(
            metavar="NAMESPACE/NAME",
            help="Lease of the scheduler beside it: shares of running Pods are changed while that "
            "one leads (default: always).",
        ),
    ] = "",
    qps: Annotated[
        float,
        typer.Option(min=1, metavar="N", help="Requests a second to the API server, on average."),
    ] = 1000,
    kubeconfig: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The cluster (default: that of this Pod).")
    ] = None,
) -> None:
    """Place Pods that ask for penstock.io/… : the extender of a kube-scheduler beside it.

    Answers nothing before it knows what all Pods hold. May be killed at any time.
    """
    import asyncio
    import gc

    # Pods and nodes are many and live long: they are not looked at each time.
    gc.set_threshold(50_000)
    asyncio.run(
        _place(
            listen,
            probes,
            scheduler,
            (nodes, devices),
            preemption == "on",
            _lease(lease),
            (kubeconfig, qps),
        )
    )


def _lease(text: str) -> tuple[str, str] | None:
    from penstock.model import PenstockError

    namespace, _, name = text.partition("/")
    if text and not (namespace and name):
        raise PenstockError(
            f"--lease {text!r} names no Lease", "its namespace or its name is missing",
            "write it like penstock/penstock-scheduler",
        )  # fmt: skip
    return (namespace, name) if text else None


async def _place(
    listen: str,
    probes: str,
    scheduler: str,
    policies: tuple[Policy, Policy],
    preempts: bool,
    lease: tuple[str, str] | None,
    server: tuple[Path | None, float],
) -> None:
    import contextlib

    from penstock.cli.address import read_address
    from penstock.cli.log import log_as
    from penstock.kube.extender.extender import Extender
    from penstock.kube.objects import http_server as serving
    from penstock.kube.objects.api_client import Api

    log = log_as("penstock kube place")
    kubeconfig, qps = server
    async with await Api.connect(kubeconfig, qps=qps, burst=int(2 * qps)) as api:
        nodes, devices = policies
        extender = Extender(
            api, scheduler, of_nodes=nodes.value, of_devices=devices.value,
            preemption=preempts, report=log, lease=lease,
        )  # fmt: skip
        async with contextlib.AsyncExitStack() as served:
            port = await served.enter_async_context(
                serving.listening(extender.app(), read_address(listen))
            )
            if probes:
                app = serving.only_probes(extender.why_not_ready)
                await served.enter_async_context(serving.listening(app, read_address(probes)))
            log("started", port=port, scheduler=scheduler, server=api.server)
            log("stopping", signal=await serving.until_stopped(extender.run()))
