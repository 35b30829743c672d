"""Tenants as a table (rich), for `ps`, `top` and the demo. NO_COLOR and plain output are rich's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.model import format_cores, human_memory

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from penstock.node.report import Row

NOT_KNOWN = "-"
WIDE_COLUMNS = 100


def console() -> Console:
    """A console that, outside a terminal, is wide enough for a whole row."""
    from rich.console import Console

    plain = Console()
    return plain if plain.is_terminal else Console(width=160)


def tenant_table(rows: Iterable[Row], title: str | None = None, *, width: int = 80) -> Table:
    """Device, tenant, memory and cores beside their quotas, refusals, processes; 80 columns do."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    wide = width >= WIDE_COLUMNS
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    table.padding = (0, 1, 0, 1) if wide else (0, 1, 0, 0)
    table.add_column("DEVICE", no_wrap=True)
    table.add_column("TENANT")
    if wide:
        table.add_column("MODE")
    for heading in ("MEMORY/QUOTA", "CORES/QUOTA", "ON DEVICE", "DENIED", "PROCS"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        cells = _cells(row)
        table.add_row(*(cells if wide else cells[:2] + cells[3:]))
    return table


def _cells(row: Row) -> list[str]:
    simulated = " (sim)" if row.simulated else ""
    quota = format_cores(row.cores_quota_permille)
    if row.allowance_permille is not None and row.allowance_permille > row.cores_quota_permille:
        quota += f"→{format_cores(row.allowance_permille)}"
    return [
        f"{row.device_index} {row.device_name.removeprefix('NVIDIA ')}{simulated}",
        row.tenant if row.problem is None else f"[red]{row.tenant}: {row.problem}[/red]",
        row.mode if row.supervised else f"{row.mode}, no supervisor",
        f"{_memory(row.memory_used_bytes)} / {human_memory(row.memory_quota_bytes)}",
        f"{_coloured(_cores(row.cores_used_permille), row)} / {quota}",
        f"{_memory(row.device_memory_bytes)} {_cores(row.device_cores_permille):>5}",
        _refusals(row.refusals),
        str(len(row.processes)),
    ]


def _memory(size_bytes: int | None) -> str:
    return NOT_KNOWN if size_bytes is None else human_memory(size_bytes)


def _cores(permille: int | None) -> str:
    return NOT_KNOWN if permille is None else f"{permille / 10:.1f}"


def _coloured(text: str, row: Row) -> str:
    limit = max(row.cores_quota_permille, row.allowance_permille or 0)
    over = row.cores_used_permille is not None and row.cores_used_permille > limit + 30
    return f"[red]{text}[/red]" if over else text


def _refusals(count: int | None) -> str:
    return NOT_KNOWN if count is None else f"[yellow]{count}[/yellow]" if count else "0"
