"""`penstock kube node`: a node's DRA driver or device plugin, beside its agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.cli.options import Kubeconfig, StateDir


def node(
    name: Annotated[
        str, typer.Option("--node", metavar="NAME", help="Name of the node in the cluster.")
    ],
    way: Annotated[
        Literal["dra", "plugin"],
        typer.Option(
            help="Allocation mode: claims (dra), or extended resources (plugin), whose Pods the "
            "extender places. A node has only one mode."
        ),
    ] = "dra",
    way_is_labelled: Annotated[
        bool,
        typer.Option(
            "--way-is-labelled",
            help="Leave the node's label penstock.io/way to administrators, who use it to choose "
            "the mode. Without this option the label is set to --way.",
        ),
    ] = False,
    kubelet_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="The kubelet's root directory.")
    ] = Path("/var/lib/kubelet"),
    device_plugin_dir: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="The kubelet's device plugin directory, which does not move with its root.",
        ),
    ] = Path("/var/lib/kubelet/device-plugins"),
    cdi_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="CDI directory of the agent.")
    ] = Path("/var/run/cdi"),
    runtime_socket: Annotated[
        Path, typer.Option(metavar="FILE", help="The container runtime's CRI socket (plugin).")
    ] = Path("/run/containerd/containerd.sock"),
    probes: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Address of /healthz and /readyz (empty: none)."),
    ] = "127.0.0.1:9472",
    leftovers_after: Annotated[
        str,
        typer.Option(metavar="TIME", help="How long a tenant may be orphaned before it is ended."),
    ] = "60s",
    unseen_namespace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Namespace whose Pods `penstock kube admit` does not see; repeatable. Pods in all "
            "other namespaces get a claim's share only if the webhook has admitted them (dra).",
        ),
    ] = None,
    kubeconfig: Kubeconfig = None,
    state_dir: StateDir = None,
) -> None:
    """Share this node's devices between Pods: publish them, serve the kubelet, reconcile tenants.

    It runs beside `penstock agent`, sees all processes of the node, and may be killed at any time.
    """
    import asyncio

    from penstock.cli.log import log_as
    from penstock.kube.kubelet.node_process import Options, serve
    from penstock.model import PenstockError, parse_duration_ns
    from penstock.model.address import read_address
    from penstock.node.tenants.state import State, default_directory

    try:
        settled_s = parse_duration_ns(leftovers_after) / 1e9
    except ValueError as error:
        raise PenstockError(
            f"invalid value {leftovers_after!r} for --leftovers-after",
            str(error),
            "write it like 60s",
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
