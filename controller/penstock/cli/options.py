"""Options that several sub-commands share."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer

# `penstock run -- prog -v`: what follows the first word of the command belongs to the command.
AS_IS = {"allow_interspersed_args": False}


class Mode(str, Enum):
    """Strict: never above the quota. Elastic: may use what others leave idle."""

    value: Literal["strict", "elastic"]
    strict = "strict"
    elastic = "elastic"


class Output(str, Enum):
    """How a list is printed."""

    table = "table"
    json = "json"
    yaml = "yaml"


def check_command(command: list[str]) -> None:
    """Raises `PenstockError` if the command's name is empty."""
    from penstock.model import PenstockError

    if not command[0]:
        raise PenstockError(
            "the command's name is empty", "perhaps a shell variable is not set",
            "write penstock run … -- COMMAND",
        )  # fmt: skip


def finite(value: float) -> float:
    """Callback for a number of seconds: rejects nan and inf."""
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number of seconds")
    return value


Choice = TypeVar("Choice", bound=Enum)


def one_of(kind: type[Choice]) -> Callable[[str], Choice]:
    """A parser for the words of `kind`; its error suggests the nearest word."""

    def parse(word: str) -> Choice:
        from penstock.model import nearest

        try:
            return kind(word)
        except ValueError:
            words = [str(one.value) for one in kind]
            near = nearest(word, words)
            hint = f"; did you mean {near}?" if near else ""
            raise typer.BadParameter(f"{word!r} is not {' or '.join(words)}{hint}") from None

    return parse


def directory(name: str) -> Path:
    """Parser for a directory; rejects the empty name, which would mean the current directory."""
    if not name:
        raise typer.BadParameter("its name is empty; perhaps a shell variable is not set")
    return Path(name)


# The meaning of an option is stated once, here; its default is stated by each command.
StateDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        parser=directory,
        help="State directory (default: $PENSTOCK_STATE_DIR, /run/penstock for root, "
        "$XDG_RUNTIME_DIR/penstock).",
    ),
]
OutputFormat = Annotated[
    Output,
    typer.Option(
        "--output", "-o", parser=one_of(Output), metavar="FORMAT", help="table, json or yaml."
    ),
]
TenantName = Annotated[
    str, typer.Argument(metavar="TENANT", help="Name, as listed by penstock ps.")
]
Memory = Annotated[
    str | None,
    typer.Option(metavar="QUANTITY", help="Device memory: 8Gi; for two devices: 8Gi,4Gi."),
]
Cores = Annotated[
    str | None,
    typer.Option(
        metavar="PERCENT", help="Share of device time, 0.1 to 100: 30; for two devices: 30,50."
    ),
]
Devices = Annotated[
    list[str] | None,
    typer.Option(
        "--device", metavar="WHICH", help="Device index, UUID or start of a UUID; several: 0,1."
    ),
]
ModeChoice = Annotated[
    Mode | None,
    typer.Option(
        "--mode",
        parser=one_of(Mode),
        metavar="MODE",
        help="strict (never above the quota) or elastic (uses idle time).",
    ),
]
PolicyFile = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        help="QuotaPolicy file; options override it (default: the policy in "
        "/etc/penstock/policies that matches).",
    ),
]
Simulate = Annotated[
    str | None,
    typer.Option(
        "--simulate", metavar="PROFILE[,N]", help="Use a simulated GPU: h200; two of them: l4,2."
    ),
]
Oversubscribe = Annotated[
    bool, typer.Option("--oversubscribe", help="Grant more than is free; prints a warning.")
]
Grace = Annotated[
    str, typer.Option(metavar="TIME", help="Time from SIGTERM to SIGKILL: 10s, 1m or 0.")
]
