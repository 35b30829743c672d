"""Options of the `penstock pool` commands: where the pool is reached, and what a claim asks for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from penstock.client.connect import PoolPlace
    from penstock.node.rpc import PoolClaim

PoolAddress = Annotated[
    str | None,
    typer.Option(
        "--pool",
        metavar="WHERE",
        help="The pool's manager: HOST:PORT[,HOST:PORT…] with three PEM files, or the path of its "
        "socket (default: $PENSTOCK_POOL, this machine's agent, a manager on this machine).",
    ),
]
PoolCert = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Certificate for --pool (default: $PENSTOCK_POOL_CERT)."),
]
PoolKey = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Its private key (default: $PENSTOCK_POOL_KEY)."),
]
PoolCa = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="CA of the manager's certificate (default: $PENSTOCK_POOL_CA)."
    ),
]
ApplicationName = Annotated[
    str, typer.Argument(metavar="NAME", help="Application, as listed by penstock pool status.")
]
Tflops = Annotated[
    str, typer.Option(metavar="N", help="Blocks of 1 TFLOPS; a part of one is rounded up.")
]
Priority = Annotated[
    str,
    typer.Option(
        metavar="P",
        help="A whole number; larger is more urgent. Less urgent applications may be suspended.",
    ),
]
PoolMemory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="QUANTITY",
        help="Device memory in all: 40Gi (default: in proportion to the blocks).",
    ),
]
CardKind = Annotated[
    str, typer.Option("--kind", metavar="KIND", help="Kind of the cards: gpu (default: any).")
]
SpanChoice = Annotated[
    str,
    typer.Option(
        "--span",
        metavar="WHAT",
        help="What the blocks may lie across: one card, cards of one node, or pool (any).",
    ),
]
Wait = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="How long to wait for room: 30s, 5m (default: not at all)."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def place_of(
    pool: str | None,
    certificate: Path | None,
    key: Path | None,
    authority: Path | None,
    state_dir: Path | None,
) -> PoolPlace:
    """Where the pool is reached, from the options that all commands share."""
    from penstock.client.connect import PoolPlace

    return PoolPlace(pool, certificate, key, authority, state_dir)


def claim_of(
    tflops: str,
    priority: str,
    wait: str | None,
    memory: str | None,
    kind: str,
    span: str,
    node: str | None = None,
    name: str | None = None,
    *,
    elastic: bool = False,
) -> PoolClaim:
    """The claim in the options of `penstock pool acquire` and `why`. Raises `PenstockError`."""
    from penstock.client import options
    from penstock.node.rpc import PoolClaim

    return PoolClaim(
        blocks=options.blocks_of(tflops),
        priority=options.priority_of(priority),
        name=options.name_of(name),
        memory_bytes=options.memory_bytes_of(memory),
        kind=options.kind_of(kind),
        span=options.span_word(span),
        node=_node_name(node),
        wait_ns=options.wait_ns_of(wait),
        mode="elastic" if elastic else "strict",
    )


def confirm(question: str, *, yes: bool) -> None:
    """Asks the user on a terminal. Raises `PenstockError` if nobody says yes."""
    from penstock.model import PenstockError

    if yes:
        return
    import sys

    if sys.stdin is None or not sys.stdin.isatty():
        raise PenstockError(
            f"not confirmed: {question}", "the standard input is not a terminal",
            "add --yes to do it without a question",
        )  # fmt: skip
    if not typer.confirm(question, err=True):
        raise PenstockError("nothing was changed", "you did not confirm it", "answer y, or add -y")


def _node_name(node: str | None) -> str:
    from penstock.model import PenstockError

    if node is not None and not node.strip():
        raise PenstockError(
            "the node's name is empty", "perhaps a shell variable is not set",
            "name a node as listed by penstock pool status, or leave --node out",
        )  # fmt: skip
    return node or ""
