"""`penstock kube`: what runs on a Kubernetes cluster; the chart starts each."""

from __future__ import annotations

import typer

from penstock.cli import kube_uninstall

app = typer.Typer(help="The parts that run on Kubernetes: see deploy/helm.", no_args_is_help=True)
app.add_typer(kube_uninstall.app, name="uninstall")
