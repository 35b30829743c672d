"""`penstock doctor`: check whether everything that a quota needs is present."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import Output, OutputFormat, Simulate, StateDir

if TYPE_CHECKING:
    from penstock.diagnostics import Finding

COLUMNS = 80
CHECK_COLUMNS = 22
_COLOURS = {"ok": "green", "warning": "yellow", "failure": "red"}


def doctor(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND]", help="A program to examine; it is not run."),
    ] = None,
    simulate: Simulate = None,
    output: OutputFormat = Output.table,
    state_dir: StateDir = None,
) -> None:
    """Check the driver, versions, names, preload, pages and machine; print advice for each fault.

    The exit code is 0 if nothing failed (there may be warnings), otherwise 1. A program built with
    AddressSanitizer needs ASAN_OPTIONS=verify_asan_link_order=0 in a tenant.
    """
    from penstock.diagnostics import examine

    findings = examine(
        simulate=simulate, state_dir=state_dir, command=command[0] if command else None
    )
    failures = sum(one.status == "failure" for one in findings)
    if output is not Output.table:
        from penstock.cli.render.output import print_data

        print_data({"ok": not failures, "findings": [one.as_dict() for one in findings]}, output)
    else:
        _print(findings, failures)
    sys.exit(1 if failures else 0)


def _print(findings: list[Finding], failures: int) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(width=COLUMNS)
    for one in findings:
        head = f"{one.status:<8} {one.check:<{CHECK_COLUMNS}} "
        if len(one.check) > CHECK_COLUMNS:
            console.print(
                Text.assemble((f"{one.status:<8}", _COLOURS[one.status]), f" {one.check}")
            )
            head = " " * (10 + CHECK_COLUMNS)
        indent = " " * (10 + CHECK_COLUMNS)
        body = textwrap.wrap(one.seen, COLUMNS, initial_indent=head, subsequent_indent=indent) or [
            head
        ]
        advice = textwrap.wrap(
            f"-> {one.advice}" if one.advice else "",
            COLUMNS,
            initial_indent=indent,
            subsequent_indent=indent + "   ",
        )
        for line in [*body, *advice]:
            text = Text(line)
            if line is body[0] and line.startswith(one.status):
                text.stylize(_COLOURS[one.status], 0, len(one.status))
            console.print(text, soft_wrap=True)
    warnings = sum(one.status == "warning" for one in findings)
    console.print(f"{failures} failures, {warnings} warnings, {len(findings)} checks")
