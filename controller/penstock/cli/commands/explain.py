"""`penstock explain pod/NAME`: why a Pod waits, or which shares it has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import Output, OutputFormat

if TYPE_CHECKING:
    from penstock.kube.controller.cluster_queries import Account


def explain(
    what: Annotated[str, typer.Argument(metavar="pod/NAME", help="The Pod.")],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAME", help="Its namespace.")
    ] = "default",
    kubeconfig: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The cluster (default: $KUBECONFIG).")
    ] = None,
    output: OutputFormat = Output.table,
) -> None:
    """Explain why a Pod on Kubernetes waits, with figures for each cause, or list its shares."""
    import asyncio

    from penstock.cli.commands.kube import need_kubernetes
    from penstock.model import PenstockError

    need_kubernetes()
    from penstock.kube.controller.cluster_queries import account

    kind, _, name = what.rpartition("/")
    if kind not in {"", "pod", "pods", "po"} or not name:
        raise PenstockError(
            f"cannot explain {what!r}", "only Pods wait for devices",
            "write penstock explain pod/NAME",
        )  # fmt: skip
    _print(asyncio.run(account(kubeconfig, namespace, name)), output)


def _print(found: Account, output: Output) -> None:
    from penstock.cli.render.output import print_data

    if output is not Output.table:
        print_data(
            {
                "namespace": found.namespace,
                "pod": found.pod,
                "phase": found.phase,
                "state": found.state,
                "node": found.node or None,
                "shares": list(found.shares),
                "causes": list(found.why.causes),
                "told": list(found.why.told),
                "said": list(found.why.said),
            },
            output,
        )
        return
    print(f"pod {found.namespace}/{found.pod}: {found.state}")
    for line in (*found.shares, *found.why.causes, *found.why.told):
        print(f"  {line}")
    if not (found.why.causes or found.why.told or found.why.said):
        print("  no obstacle is known")
    for said in found.why.said:
        print(f"  reported by others: {said}")
