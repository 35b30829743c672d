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
    """Raises `PenstockError` for a command without a name, which nothing can start."""
    from penstock.model import PenstockError

    if not command[0]:
        raise PenstockError(
            "the command's name is empty", "perhaps a variable of the shell is not set",
            "write penstock run … -- COMMAND",
        )  # fmt: skip


def finite(value: float) -> float:
    """A number of seconds that is one: not nan, not inf."""
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a time")
    return value


Choice = TypeVar("Choice", bound=Enum)


def one_of(kind: type[Choice]) -> Callable[[str], Choice]:
    """A parser of the words of `kind`, which knows what somebody most likely meant."""

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
    """A directory's path; the empty name, which would be the current one, is none."""
    if not name:
        raise typer.BadParameter("its name is empty; perhaps a variable of the shell is not set")
    return Path(name)


# What an option means is said once, here; what it defaults to is said by each command.
StateDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        parser=directory,
        help="Where tenants are kept (default: $PENSTOCK_STATE_DIR, /run/penstock for root, "
        "$XDG_RUNTIME_DIR/penstock).",
    ),
]
OutputFormat = Annotated[
    Output,
    typer.Option(
        "--output", "-o", parser=one_of(Output), metavar="FORMAT", help="table, json or yaml."
    ),
]
TenantName = Annotated[str, typer.Argument(metavar="TENANT", help="As penstock ps names it.")]
Memory = Annotated[
    str | None, typer.Option(metavar="QUANTITY", help="Device memory: 8Gi; 8Gi,4Gi on two.")
]
Cores = Annotated[
    str | None,
    typer.Option(metavar="PERCENT", help="Share of device time: 0.1 to 100; 30,50 on two."),
]
Devices = Annotated[
    list[str] | None,
    typer.Option("--device", metavar="WHICH", help="Index, UUID or start of one; 0,1 is two."),
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
        help="QuotaPolicy; options override it (default: the node's, /etc/penstock/policies).",
    ),
]
Simulate = Annotated[
    str | None,
    typer.Option("--simulate", metavar="PROFILE[,N]", help="On a simulated GPU: h200, l4,2."),
]
Oversubscribe = Annotated[
    bool, typer.Option("--oversubscribe", help="Grant what is granted already; warns.")
]
Grace = Annotated[
    str, typer.Option(metavar="TIME", help="Between SIGTERM and SIGKILL: 10s, 1m; 0.")
]
