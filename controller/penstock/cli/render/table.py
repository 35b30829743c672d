"""Tables of tenants and usage for the command line; rich handles NO_COLOR and plain output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.model import format_cores, human_memory

if TYPE_CHECKING:
    from rich.console import Console, Group, JustifyMethod, OverflowMethod
    from rich.table import Table

    from penstock.node.metering.usage import UsageRow
    from penstock.node.supervision.tenant_report import Row

NOT_KNOWN = "-"
WIDE_COLUMNS = 120  # from this width on, columns are further apart
NAME_COLUMNS = 16  # a longer name is wrapped before a column is left out
HEADINGS = (
    *("DEVICE", "TENANT", "MODE", "MEMORY/QUOTA", "CORES/QUOTA", "ON DEVICE", "DENIED", "PROCS"),
)
LEAST_FIRST = ("MODE", "PROCS", "DENIED", "DEVICE", "ON DEVICE", "MEMORY/QUOTA", "CORES/QUOTA")


def console() -> Console:
    """A console that, outside a terminal, is wide enough for a whole row."""
    from rich.console import Console

    plain = Console()
    return plain if plain.is_terminal else Console(width=160)


def tenant_table(rows: Iterable[Row], title: str | None = None, *, width: int = 80) -> Group:
    """Table of tenants with usage and quota, as many columns as fit `width`, and problems below."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    cells = [_cells(row) for row in rows]
    gap = 2 if width >= WIDE_COLUMNS else 1
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    table.padding = (0, gap - 1, 0, gap - 1)
    shown = _columns_within(width, cells, gap)
    for heading in shown:
        left = heading in ("DEVICE", "TENANT", "MODE")
        # A name that is too long for its column is wrapped; a number is never wrapped.
        name = heading == "TENANT"
        overflow: OverflowMethod = "fold" if name else "ellipsis"
        justify: JustifyMethod = "left" if left else "right"
        table.add_column(heading, justify=justify, no_wrap=not name, overflow=overflow)
    for one in cells:
        table.add_row(*(one[heading] for heading in shown))
    problems = dict.fromkeys((row.tenant, row.problem) for row in rows if row.problem)
    return Group(
        table,
        *(Text.from_markup(f"[red]{escape(f'{name}: {why}')}[/red]") for name, why in problems),
    )


def _columns_within(width: int, cells: list[dict[str, str]], gap: int) -> list[str]:
    """The headings that fit. The least important are left out first, the tenant's name never."""
    from rich.text import Text

    def needs(heading: str) -> int:
        widths = [Text.from_markup(one[heading]).cell_len for one in cells]
        longest = max([len(heading), *widths])
        return min(longest, NAME_COLUMNS) if heading == "TENANT" else longest

    shown = list(HEADINGS)
    for least in LEAST_FIRST:
        if sum(needs(heading) + 2 * gap - 1 for heading in shown) <= width:
            break
        shown.remove(least)
    return shown


def _cells(row: Row) -> dict[str, str]:
    """The row's cells as rich markup, by heading."""
    from rich.markup import escape

    name = escape(row.tenant)
    return {
        "DEVICE": escape(_device(row)),
        "TENANT": name if row.problem is None else f"[red]{name}[/red]",
        "MODE": _mode(row),
        "MEMORY/QUOTA": f"{_memory(row.memory_used_bytes)} / {_memory(row.memory_quota_bytes)}",
        "CORES/QUOTA": f"{_coloured(_cores(row.cores_used_permille), row)} / {_cores_quota(row)}",
        "ON DEVICE": f"{_memory(row.device_memory_bytes)} {_cores(row.device_cores_permille):>5}",
        "DENIED": _refusals(row.refusals),
        "PROCS": NOT_KNOWN if row.process_count is None else str(row.process_count),
    }


def _mode(row: Row) -> str:
    """The mode, and where the device memory of a suspended tenant is."""
    words = [row.mode]
    if not row.supervised:
        words.append("no supervisor")
    if row.suspension == "launches":
        words.append("suspended")
    elif row.suspension:
        words.append(f"{row.suspension} ({_memory(row.host_memory_bytes)} on the host)")
    return ", ".join(words)


def _device(row: Row) -> str:
    if row.device_index is None:
        return NOT_KNOWN
    simulated = " (sim)" if row.simulated else ""
    return f"{row.device_index} {row.device_name.removeprefix('NVIDIA ')}{simulated}"


def _cores_quota(row: Row) -> str:
    if row.cores_quota_permille is None:
        return NOT_KNOWN
    quota = format_cores(row.cores_quota_permille)
    if row.allowance_permille is not None and row.allowance_permille > row.cores_quota_permille:
        quota += f"→{format_cores(row.allowance_permille)}"
    return quota


def _memory(size_bytes: int | None) -> str:
    return NOT_KNOWN if size_bytes is None else human_memory(size_bytes)


def _cores(permille: int | None) -> str:
    return NOT_KNOWN if permille is None else f"{permille / 10:.1f}"


def _coloured(text: str, row: Row) -> str:
    limit = max(row.cores_quota_permille or 0, row.allowance_permille or 0)
    over = row.cores_used_permille is not None and row.cores_used_permille > limit + 30
    return f"[red]{text}[/red]" if over else text


def _refusals(count: int | None) -> str:
    return NOT_KNOWN if count is None else f"[yellow]{count}[/yellow]" if count else "0"


def plain_table(rows: Sequence[Mapping[str, object]]) -> Table:
    """A table of `rows`, which must not be empty; the keys of a row are the columns."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in rows[0]:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            *(f"{v:.2f}" if isinstance(v, float) else escape(str(v)) for v in row.values())
        )
    return table


def usage_table(rows: Iterable[UsageRow], by: str) -> Table:
    """Table of usage, most device time first, with the device time that the device measured."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(by.upper(), overflow="fold")
    if by == "tenant":
        table.add_column("USER", overflow="fold")
    for heading in ("DEVICE TIME", "BY THE DEVICE", "MEMORY x TIME", "METERED", "ESTIMATED"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        amounts, group = row.amounts, row.group
        name = group.get("device_uuid") or group.get(by) or NOT_KNOWN
        if group.get("pod"):
            name = f"{group['namespace']}/{group['pod']}/{group['container']}"
        doubt = "[red]![/red] " if amounts.suspicions else ""
        table.add_row(
            doubt + escape(name),
            *([escape(group["user"])] if by == "tenant" else []),
            _seconds(amounts.charged_ns),
            _seconds(amounts.measured_ns) if amounts.measured_ns else NOT_KNOWN,
            f"{amounts.byte_seconds / (1 << 30) / 3600:.3f} GiBh",
            _seconds(amounts.metered_ns),
            _seconds(amounts.estimated_ns),
        )
    return table


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / 1e9:,.3f}s"
