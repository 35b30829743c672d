"""Options that several sub-commands share."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

import typer


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


StateDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Where tenants are kept (default: $PENSTOCK_STATE_DIR, /run/penstock for root, "
        "$XDG_RUNTIME_DIR/penstock).",
    ),
]
