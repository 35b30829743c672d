"""`penstock kube node`: a node's DRA driver or device plugin, beside its agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.cli.options import StateDir


def node(
    name: Annotated[str, typer.Option("--node", metavar="NAME", help="As the cluster calls it.")],
    way: Annotated[
        Literal["dra", "plugin"],
        typer.Option(
            help="How Pods ask: by claims (dra), or by extended resources (plugin), where Pods are "
            "placed by the extender. A node is served in one way only."
        ),
    ] = "dra",
    way_is_labelled: Annotated[
        bool,
        typer.Option(
            "--way-is-labelled",
            help="Leave the node's label penstock.io/way to people, who choose by it; without this "
            "the label is made to say --way.",
        ),
    ] = False,
    kubelet_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="The kubelet's root directory.")
    ] = Path("/var/lib/kubelet"),
    device_plugin_dir: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The kubelet's, which does not move with its root."),
    ] = Path("/var/lib/kubelet/device-plugins"),
    cdi_dir: Annotated[Path, typer.Option(metavar="DIR", help="That of the agent.")] = Path(
        "/var/run/cdi"
    ),
    runtime_socket: Annotated[
        Path, typer.Option(metavar="FILE", help="The container runtime's CRI socket (plugin).")
    ] = Path("/run/containerd/containerd.sock"),
    probes: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Where /healthz and /readyz are; empty: nowhere."),
    ] = "127.0.0.1:9472",
    leftovers_after: Annotated[
        str,
        typer.Option(metavar="TIME", help="How long nobody may want a tenant before it is ended."),
    ] = "60s",
    unseen_namespace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A namespace whose Pods `penstock kube admit` does not see; may be given again. "
            "Pods of all others get a claim's share only with what it gives them (dra).",
        ),
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The cluster (default: that of this Pod).")
    ] = None,
    state_dir: StateDir = None,
) -> None:
    """Give this node's devices to Pods: tells schedulers, serves the kubelet, keeps tenants true.

    Runs beside `penstock agent`, sees all processes of the node, and may be killed at any time.
    """
    import asyncio

    from penstock.cli.address import read_address
    from penstock.cli.log import log_as
    from penstock.kube.kubelet.node_process import Options, serve
    from penstock.model import PenstockError, parse_duration_ns
    from penstock.node.tenants.state import State, default_directory

    try:
        settled_s = parse_duration_ns(leftovers_after) / 1e9
    except ValueError as error:
        raise PenstockError(
            f"--leftovers-after {leftovers_after!r} is no time", str(error), "for example 60s"
        ) from error
    options = Options(
        node=name,
        agent_socket=State((state_dir or default_directory()).absolute()).agent_socket,
        kubelet_dir=kubelet_dir,
        kubeconfig=kubeconfig,
        probes=read_address(probes) if probes else None,
        settled_s=settled_s,
        way=way,
        way_is_labelled=way_is_labelled,
        device_plugin_dir=device_plugin_dir,
        cdi_dir=cdi_dir,
        runtime_socket=runtime_socket,
        unseen=frozenset(unseen_namespace) if unseen_namespace else None,
    )
    asyncio.run(serve(options, log_as("penstock kube node")))
