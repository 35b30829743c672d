"""`penstock kube`: what runs on Kubernetes, a process a sub-command."""

from __future__ import annotations

import importlib.util

import typer

from penstock.cli import kube_admit, kube_control, kube_node, kube_place

app = typer.Typer(no_args_is_help=True)
app.command("node")(kube_node.node)
app.command("place")(kube_place.place)
app.command("admit")(kube_admit.admit)
app.command("control")(kube_control.control)


@app.callback()
def kube() -> None:
    """What runs on Kubernetes: the chart starts these."""
    need_kubernetes()


def need_kubernetes() -> None:
    """Raises `PenstockError` where the Kubernetes parts are not installed."""
    from penstock.model import PenstockError

    if importlib.util.find_spec("kubernetes_asyncio") is None:
        raise PenstockError(
            "this Penstock has no Kubernetes parts", "its extra `kube` is not installed",
            "pip install 'penstock[kube]'",
        )  # fmt: skip
