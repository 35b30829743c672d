"""`penstock kube`: what runs on Kubernetes, a process a sub-command."""

from __future__ import annotations

import typer

from penstock.cli import kube_node, kube_uninstall

app = typer.Typer(help="What runs on Kubernetes: the chart starts these.", no_args_is_help=True)
app.command("node")(kube_node.node)
app.add_typer(kube_uninstall.app, name="uninstall")
