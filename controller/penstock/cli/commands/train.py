"""`penstock train`: one program, written for one machine, on several unlike cards."""

from __future__ import annotations

import random
import sys
from typing import Annotated

import typer

from penstock.cli.options import AS_IS, check_command
from penstock.cli.say import say

app = typer.Typer(help="Train one program on several unlike cards.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Train one program on several unlike cards."""


@app.command(context_settings=AS_IS)
def run(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND…", help="The command to run on each card.")
    ],
    card: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND[:N][=WEIGHT]",
            help="A card of this machine: cuda:0, cpu, …; repeat it for several. WEIGHT: its part "
            "of each batch until speeds are measured.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**31 - 1, help="Of the ranks' random numbers (default: any)."),
    ] = None,
) -> None:
    """Run a PyTorch program once for each card, each with a part of every batch.

    The program is written for one machine. Each card (a rank) computes a part of every batch, of a
    size that fits its measured speed, and the gradients are those of the whole batch: see
    docs/how-to/train.md. Rank 0 prints; the end of what another rank printed is shown if it fails.
    The exit code is that of the first rank that failed, or 0.
    """
    from penstock.model import PenstockError
    from penstock.training.card import Card
    from penstock.training.local_job import LocalJob

    check_command(command)
    if not card:
        raise PenstockError(
            "no card is given", "each --card is one rank of the job",
            "write penstock train run --card cuda:0 --card cuda:1 -- COMMAND",
        )  # fmt: skip
    cards = [Card.parse(one) for one in card]
    if seed is None:
        seed = random.SystemRandom().randrange(2**31)
    sys.exit(LocalJob(cards, command, seed, say).run())
