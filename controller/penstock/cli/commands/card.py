"""`penstock card`: programs that use a virtual card, and what their cards do."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import finite

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.card.published import ProgramFigures

HELP = "q quits"

app = typer.Typer(
    help="Programs that use a virtual card: see what their cards do.", no_args_is_help=True
)


@app.callback()
def _group() -> None:
    """Programs that use a virtual card: see what their cards do."""


@app.command()
def top(
    pid: Annotated[
        int | None, typer.Argument(metavar="[PID]", min=1, help="Show this program alone.")
    ] = None,
    interval: Annotated[
        float,
        typer.Option(min=0.1, max=86400, callback=finite, help="Seconds between updates."),
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and exit.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one snapshot as JSON and exit.")
    ] = False,
) -> None:
    """Show programs that use a virtual card, live: shares, waits, bytes, slow lines. q quits.

    Root sees the programs of all users, others their own. For each card: SHARE is its part of the
    rows of what is split, by its speed, and WORK its part of the busy time of all cards in the last
    second. BUSY, CARDS and PROGRAM are the parts of that second in which it worked, exchanged data
    with other cards or waited for them, and waited for the program. UP, DOWN, GATHERED and SUMMED
    are bytes since the start.

    Below are the lines of the program that cost most: gathers (cards exchange their parts of a
    tensor), downloads, results whose shape depends on data, and plans for new shapes. With PID,
    the exit code is 2 if no such program is found.
    """
    view = _View(pid)
    view.refresh()
    if as_json:
        print(json.dumps([asdict(one) for one in view.programs], indent=2, allow_nan=False))
        for problem in view.problems:
            print(f"penstock: {problem}", file=sys.stderr)
    elif once or not sys.stdout.isatty():
        from penstock.cli.render.card_screen import card_screen
        from penstock.cli.render.table import console

        page = console()
        page.print(card_screen(view.programs, view.problems, width=page.width))
    else:
        from penstock.cli.render.live import show

        show(view, interval)


@app.command()
def serve(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where programs reach the card. Port 0: any.")
    ],
    credentials: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="FOLDER/worker that penstock card credentials FOLDER has made."
        ),
    ],
    card: Annotated[
        str, typer.Option(metavar="CARD", help="The card of this machine: cuda:0, npu:1, cpu.")
    ] = "cuda:0",
    once: Annotated[
        bool, typer.Option("--once", help="End when the run is over whose programs it serves.")
    ] = False,
    wait: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="With --once: end, too, when no program was there for so long."
        ),
    ] = "1h",
) -> None:
    """Offer a card of this machine to programs on others, until this command is ended.

    It serves one program at a time. A program lists it as tcp:HOST:PORT among its cards, and has
    the other half of the credentials in $PENSTOCK_CARD_CREDENTIALS. Connections are mutual TLS. To
    give programs a share of the card alone, start this with penstock run --memory 8Gi --cores 50.

    With --once it serves one run of penstock train: a program of it that fails or is killed may
    come again. SIGTERM ends the command with exit code 143 then, so that what started it knows that
    the run is not over.
    """
    from penstock.cli.say import say
    from penstock.model import PenstockError, parse_duration_ns
    from penstock.model.address import read_address

    host, port = read_address(listen)
    try:
        from penstock.card.serving import serve_card
    except ImportError as error:
        raise PenstockError(
            "cards need PyTorch", str(error), "install it with pip install 'penstock[torch]'"
        ) from error
    once_s = parse_duration_ns(wait) / 1e9 if once else None
    with contextlib.suppress(KeyboardInterrupt):
        serve_card(card, host, port, credentials, say, once_s)


@app.command("credentials")
def make_credentials(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder, which is made.")],
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long they are valid.")] = 90,
) -> None:
    """Make the credentials by which programs and served cards know each other.

    FOLDER/program is for programs, FOLDER/worker for penstock card serve. Who has a half may use
    the cards, or pretend to be one: copy each only to where it is needed.
    """
    from penstock.card.credentials import write

    write(folder, days)
    print(f"{folder / 'program'}  for programs: PENSTOCK_CARD_CREDENTIALS={folder / 'program'}")
    print(f"{folder / 'worker'}   for penstock card serve --credentials")


class _View:
    """All programs of this user, or one of them."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self.programs: list[ProgramFigures] = []
        self.problems: list[str] = []

    def refresh(self) -> None:
        """Reads what programs publish. Raises `PenstockError` if the wanted one is not there."""
        from penstock.card.published import read_all
        from penstock.model import PenstockError

        self.programs, self.problems = read_all()
        if self._pid is None:
            return
        found = [one for one in self.programs if one.pid == self._pid]
        if not found:
            others = ", ".join(str(one.pid) for one in self.programs)
            raise PenstockError(
                f"process {self._pid} is no program that uses a virtual card",
                f"such programs are: {others}" if others else "there is none of this user",
                "start it with PENSTOCK_CARD or penstock run --tflops; it is shown from its first "
                "operation on",
            )  # fmt: skip
        self.programs = found

    def draw(self, width: int, height: int) -> RenderableType:
        """See `penstock.cli.render.live.View`."""
        from penstock.cli.render.card_screen import card_screen

        return card_screen(self.programs, self.problems, width=width, height=height, help_=HELP)

    def typed(self, keys: str) -> None:
        """No other key does anything."""
