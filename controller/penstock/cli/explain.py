"""`penstock explain pod/NAME`: why a Pod waits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import Output, OutputFormat

if TYPE_CHECKING:
    from penstock.kube.control.look import Account


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
    """Why a Pod on Kubernetes waits: each cause with its figure, nodes taken together."""
    import asyncio

    from penstock.cli.kube import need_kubernetes
    from penstock.model import PenstockError

    need_kubernetes()
    from penstock.kube.control.look import account

    kind, _, name = what.rpartition("/")
    if kind not in {"", "pod", "pods", "po"} or not name:
        raise PenstockError(
            f"{what!r} cannot be explained", "Pods are what waits for devices",
            "write penstock explain pod/NAME",
        )  # fmt: skip
    _print(asyncio.run(account(kubeconfig, namespace, name)), output)


def _print(found: Account, output: Output) -> None:
    from penstock.cli.output import print_data

    if output is not Output.table:
        print_data(
            {
                "namespace": found.namespace,
                "pod": found.pod,
                "phase": found.phase,
                "node": found.node or None,
                "shares": list(found.shares),
                "causes": list(found.why.causes),
                "said": list(found.why.said),
            },
            output,
        )
        return
    where = f" on {found.node}" if found.node else ""
    print(f"pod {found.namespace}/{found.pod}: {found.phase}{where}")
    for share in found.shares:
        print(f"  {share}")
    for cause in found.why.causes:
        print(f"  {cause}")
    if not found.why.causes and not found.why.said:
        print("  nothing is known against it")
    for said in found.why.said:
        print(f"  said by others: {said}")
