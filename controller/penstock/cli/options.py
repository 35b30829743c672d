"""Options that several sub-commands share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from penstock.model.terms import MODES, Mode

# `penstock run -- prog -v`: options after the command's first word belong to the command.
AS_IS = {"allow_interspersed_args": False}


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
    """Option callback for a number of seconds that rejects nan and inf."""
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number of seconds")
    return value


Choice = TypeVar("Choice", bound=str)


def one_of(choices: Iterable[Choice]) -> Callable[[str], Choice]:
    """Returns a parser for one of `choices` (words or an Enum) whose error suggests the nearest."""
    words = {str(getattr(one, "value", one)): one for one in choices}

    def parse(word: str) -> Choice:
        from penstock.model import nearest

        if word in words:
            return words[word]
        near = nearest(word, words)
        hint = f"; did you mean {near}?" if near else ""
        raise typer.BadParameter(f"{word!r} is not {' or '.join(words)}{hint}")

    return parse


def directory(name: str) -> Path:
    """Parser for a directory name; rejects "", which would mean the current directory."""
    if not name:
        raise typer.BadParameter("its name is empty; perhaps a shell variable is not set")
    return Path(name)


# The help text of a shared option is defined once, here; each command defines its own default.
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
        parser=one_of(MODES),
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
Web = Annotated[
    bool, typer.Option("--web", help="Show it live on a read-only web page, on this machine alone.")
]
WebAddress = Annotated[
    str | None,
    typer.Option(
        metavar="ADDR:PORT", help="Serve the web page there; implies --web (127.0.0.1:9480)."
    ),
]
WebOpen = Annotated[
    bool,
    typer.Option(
        "--web-open",
        help="Allow a --web-address that others can reach. It asks nobody who they are.",
    ),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Kubeconfig of the cluster (default: this Pod's)."),
]
Qps = Annotated[
    float, typer.Option(min=1, metavar="N", help="Average requests per second to the API server.")
]
