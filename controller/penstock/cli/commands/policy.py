"""`penstock policy check|schema`: check policy files, print their JSON Schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Check policy files; print their JSON Schema.", no_args_is_help=True)


@app.command()
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Policy files (YAML).")],
) -> None:
    """Check policy files; print each problem with file, line and key, and exit with 2 if any."""
    from penstock.policy import load_files

    for loaded in load_files(files):
        print(f"{loaded.file}:{loaded.position.line}: QuotaPolicy {loaded.name}: ok")


@app.command()
def schema() -> None:
    """Print the JSON Schema of a policy, for editors."""
    import json

    from penstock.policy import json_schema

    print(json.dumps(json_schema(), indent=2))
