"""`penstock kube`: the Kubernetes components, one process per sub-command."""

from __future__ import annotations

import importlib.util

import typer

from penstock.cli.commands import kube_admit, kube_control, kube_node, kube_place, kube_uninstall

app = typer.Typer(no_args_is_help=True)
app.command("node")(kube_node.node)
app.command("place")(kube_place.place)
app.command("admit")(kube_admit.admit)
app.command("control")(kube_control.control)
app.add_typer(kube_uninstall.app, name="uninstall")


@app.callback()
def kube() -> None:
    """Run a Kubernetes component; the Helm chart starts them."""
    need_kubernetes()


def need_kubernetes() -> None:
    """Raises `PenstockError` if the Kubernetes components are not installed."""
    from penstock.model import PenstockError

    if importlib.util.find_spec("kubernetes_asyncio") is None:
        raise PenstockError(
            "the Kubernetes components are missing", "the extra `kube` is not installed",
            "run pip install 'penstock[kube]'",
        )  # fmt: skip
