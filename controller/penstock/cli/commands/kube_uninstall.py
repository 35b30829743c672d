"""`penstock kube uninstall`: steps that the chart's uninstall hooks run."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.say import say

app = typer.Typer(help="Steps that run when the chart is uninstalled.", no_args_is_help=True)
Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Kubeconfig of the cluster (default: this Pod's, or $KUBECONFIG)."
    ),
]
Namespace = Annotated[str, typer.Option(help="Namespace of the chart's release.")]
Within = Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait at most.")]


@app.command()
def check(
    undo: Annotated[
        str,
        typer.Option(
            metavar="COMMAND", help="Command that undoes the uninstall, printed when it is refused."
        ),
    ] = "helm rollback RELEASE REVISION",
    kubeconfig: Kubeconfig = None,
) -> None:
    """Fail if any Pods have shares, and list these Pods."""

    async def look() -> None:
        from penstock.kube.objects.api_client import Api
        from penstock.kube.uninstall.users import check_unused

        async with await Api.connect(kubeconfig) as api:
            await check_unused(api, undo)

    asyncio.run(look())
    say("no Pod has a share")


@app.command()
def node(
    namespace: Namespace,
    selector: Annotated[str, typer.Option(help="Labels of the agents' Pods, which must be gone.")],
    name: Annotated[str, typer.Option(help="Name of this node.")],
    done: Annotated[Path, typer.Option(metavar="FILE", help="File to create when all is removed.")],
    root: Annotated[
        Path, typer.Option(metavar="DIR", help="Root of the node's file system.")
    ] = Path("/"),
    state_dir: Annotated[Path, typer.Option(metavar="DIR")] = Path("/run/penstock"),
    data_dir: Annotated[Path, typer.Option(metavar="DIR")] = Path("/var/lib/penstock"),
    cdi_dir: Annotated[Path, typer.Option(metavar="DIR")] = Path("/var/run/cdi"),
    kubelet_dir: Annotated[Path, typer.Option(metavar="DIR")] = Path("/var/lib/kubelet"),
    device_plugin_dir: Annotated[Path, typer.Option(metavar="DIR")] = Path(
        "/var/lib/kubelet/device-plugins"
    ),
    within: Within = 300,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Remove all of Penstock's files from this node, then wait for SIGTERM as a DaemonSet's Pod.

    Directories are on the node's file system, relative to --root.
    """
    from penstock.kube.uninstall.node import NodeFiles, await_no_pods
    from penstock.model import PenstockError

    async def wait() -> None:
        from penstock.kube.objects.api_client import Api

        async with await Api.connect(kubeconfig) as api:
            await await_no_pods(api, namespace, selector, name, within)

    # The first process of a container is ended only by signals for which it has a handler.
    stopping = (signal.SIGTERM, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, stopping)
    asyncio.run(wait())
    named = (state_dir, data_dir, cdi_dir, kubelet_dir, device_plugin_dir)
    places = (root / str(one).lstrip("/") for one in named)
    files = NodeFiles(*places)
    if files.has_agent():
        raise PenstockError(
            f"an agent runs on {files.state}", "it is not one of the chart's Pods",
            "end it first: penstock agent uninstall", reason="not-now",
        )  # fmt: skip
    for path in files.remove():
        say(f"removed {path}")
    done.touch()
    signal.sigwait(stopping)


@app.command()
def cluster(
    namespace: Namespace,
    cleaners: Annotated[str, typer.Option(help="The DaemonSet whose Pods clean the nodes.")],
    lease: Annotated[list[str], typer.Option(help="Lease of the namespace, to be removed.")],
    within: Within = 300,
    forget_within: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="How long to wait until no kubelet reports vGPUs (0: do not wait).",
        ),
    ] = 420,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Wait until all nodes are clean, then remove the API objects that the chart did not create."""

    async def clean() -> None:
        from penstock.kube.objects.api_client import Api
        from penstock.kube.uninstall.cluster import await_cleaners, clean_cluster, forget_capacities

        async with await Api.connect(kubeconfig) as api:
            await await_cleaners(api, namespace, cleaners, within)
            async for told in clean_cluster(api, namespace, lease):
                say(f"removed {told}")
            async for told in forget_capacities(api, forget_within):
                say(f"removed {told}")

    asyncio.run(clean())
