"""`penstock kube place`: the scheduler extender."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.cli.options import Kubeconfig, Qps


class Policy(str, Enum):
    """Order in which nodes or devices are filled."""

    value: Literal["binpack", "spread"]
    binpack = "binpack"
    spread = "spread"


def place(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on for the scheduler.")
    ] = "127.0.0.1:9471",
    scheduler: Annotated[
        str, typer.Option(metavar="NAME", help="Scheduler profile that calls the extender.")
    ] = "penstock-scheduler",
    nodes: Annotated[
        Policy, typer.Option(help="Fill nodes one after the other, or all evenly.")
    ] = Policy.binpack,
    devices: Annotated[
        Policy, typer.Option(help="Fill a node's devices one after the other, or all evenly.")
    ] = Policy.binpack,
    preemption: Annotated[
        Literal["on", "off"],
        typer.Option(help="Whether Pods are evicted for Pods of higher priority."),
    ] = "on",
    probes: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Address that serves only the health probes for the kubelet (default: none).",
        ),
    ] = "",
    lease: Annotated[
        str,
        typer.Option(
            metavar="NAMESPACE/NAME",
            help="Lease of the scheduler that runs beside the extender: shares of running Pods are "
            "changed only while that scheduler leads (default: always).",
        ),
    ] = "",
    qps: Qps = 1000,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Run the scheduler extender for Pods that request penstock.io/…, beside a kube-scheduler.

    It responds to no request until it knows the shares of all Pods. It may be killed at any time.
    """
    import asyncio
    import gc

    # There are many long-lived Pods and nodes, so exclude them from every garbage collection.
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
            f"invalid value {text!r} for --lease", "the namespace or the name is missing",
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

    from penstock.cli.log import log_as
    from penstock.kube.extender.extender import Extender
    from penstock.kube.objects import http_server as serving
    from penstock.kube.objects.api_client import Api
    from penstock.model.address import read_address

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
