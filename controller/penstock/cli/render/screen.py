"""Layout of `penstock top`: devices as bars, and tenants below them, the busiest first.

In a device's bar, the used part is solid and the part that is granted but not used is shaded. A
tenant's full bar is what the tenant may use now; a + after its quota marks time lent to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from penstock.model import format_cores, human_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from penstock.cli.render.feed import DeviceLine, Picture, TenantLine

NOT_KNOWN = "-"
NARROW_COLUMNS, WIDE_COLUMNS = 72, 110
MOST_PROBLEMS = 3  # number of lines for problems at the bottom
EIGHTHS = " ▏▎▍▌▋▊▉█"
ORDERS: dict[str, Callable[[TenantLine], tuple[float, str]]] = {
    "cores": lambda line: (-(line.row.cores_used_permille or 0), line.row.tenant),
    "memory": lambda line: (-(line.row.memory_used_bytes or 0), line.row.tenant),
    "name": lambda line: (0, line.row.tenant),
}


@dataclass(frozen=True)
class Bar:
    """A bar as wide as its column, solid up to the fraction `part` and shaded up to `granted`."""

    part: float
    granted: float = 0.0
    style: str = "green"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draws the bar, in eighths of a character if the terminal has such characters."""
        width = options.max_width
        part, granted = (min(1.0, max(0.0, one)) for one in (self.part, self.granted))
        end = round(granted * width)
        if options.ascii_only:
            full = round(part * width)
            text, shade = "#" * full, "-" * max(0, end - full)
            blank = "." * (width - len(text) - len(shade))
        else:
            eighths = round(part * width * 8)
            text = EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()
            shade = "▒" * max(0, end - len(text))
            blank = "░" * (width - len(text) - len(shade))
        yield Segment(text, Style.parse(self.style))
        yield Segment(shade, Style.parse("dim"))
        yield Segment(blank, Style.parse("bright_black"))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """The bar's width, which is as much as the column allows."""
        return Measurement(4, options.max_width)


def screen(
    picture: Picture,
    *,
    width: int,
    height: int | None = None,
    order: str = "cores",
    help_: str = "",
) -> Group:
    """The snapshot in `width` columns and, if given, `height` lines."""
    parts: list[RenderableType] = [_head(picture.title, help_, width)]
    if picture.devices:
        parts.append(_devices(picture.devices, width))
    problems = _problems(picture)
    rows = None
    if height is not None:  # title, devices, headings, problems, and the line for what does not fit
        rows = max(1, height - 3 - len(picture.devices) - bool(picture.devices) - len(problems))
    lines = sorted(picture.tenants, key=ORDERS[order])
    shown = lines if rows is None or len(lines) <= rows else lines[: max(1, rows - 1)]
    parts.append(_tenants(shown, width, order) if lines else Text("no tenants", style="dim"))
    if len(shown) < len(lines):
        parts.append(Text(f"… and {len(lines) - len(shown)} more", style="dim"))
    return Group(*parts, *problems)


def _head(title: str, help_: str, width: int) -> Text:
    text = Text(title, style="bold", no_wrap=True, overflow="ellipsis")
    if help_ and len(title) + len(help_) + 2 <= width:
        text.append(" " * (width - len(title) - len(help_)) + help_, style="dim not bold")
    return text


def _devices(devices: Sequence[DeviceLine], width: int) -> Table:
    table = Table.grid(padding=(0, 1), expand=True)
    table.show_header, table.header_style = True, "reverse"
    table.add_column("DEVICE", no_wrap=True, overflow="ellipsis", max_width=max(10, width // 4))
    for heading in ("CORES", "MEMORY"):
        table.add_column("", ratio=1, min_width=4)
        table.add_column(heading, no_wrap=True, justify="right")
    for one in devices:
        name = one.name.removeprefix("NVIDIA ") + (" (sim)" if one.simulated else "")
        granted = f"/{format_cores(one.cores_granted_permille)}"
        size = human_memory(one.memory_bytes) if one.memory_bytes else NOT_KNOWN
        table.add_row(
            Text(f"{one.index} {name}"),
            Bar(one.cores_used_permille / 1000, one.cores_granted_permille / 1000, "green"),
            Text(f"{_percent(one.cores_used_permille)}%" + (granted if width >= 100 else "")),
            Bar(
                one.memory_used_bytes / one.memory_bytes if one.memory_bytes else 0,
                one.memory_granted_bytes / one.memory_bytes if one.memory_bytes else 0,
                "cyan",
            ),
            Text(f"{human_memory(one.memory_used_bytes)}/{size}"),
        )
    return table


def _tenants(lines: Sequence[TenantLine], width: int, order: str) -> Table:
    bars = 6 if width < WIDE_COLUMNS else 12
    narrow = width < NARROW_COLUMNS
    table = Table.grid(padding=(0, 1), expand=True)

    def column(heading: str, *, sorted_by: str = "", **options: object) -> None:
        style = "bold reverse" if sorted_by == order else "reverse"
        table.add_column(Text(heading, style=style), **options)  # type: ignore[arg-type]

    name_width = 12 if width < WIDE_COLUMNS else 24
    table.show_header = True
    table.header_style = "reverse"
    column("TENANT", sorted_by="name", no_wrap=True, overflow="ellipsis", max_width=name_width)
    if not narrow:
        column("USER", no_wrap=True, overflow="ellipsis", max_width=8)
    column("DEV", justify="right", no_wrap=True)
    for heading in ("CORES", "MEMORY"):
        if not narrow:
            table.add_column("", width=bars)
        column(heading, sorted_by=heading.lower(), justify="right", no_wrap=True)
    column("PROC", justify="right", no_wrap=True)
    column("COMMAND", no_wrap=True, overflow="ellipsis", ratio=1, min_width=7)
    for line in lines:
        row = line.row
        style = "red" if row.problem else "dim" if line.suspended else ""
        cores_quota = row.cores_quota_permille or 0
        allowed = max(cores_quota, row.allowance_permille or 0)
        over = (row.cores_used_permille or 0) > allowed + 30
        lent = "+" * (allowed > cores_quota)
        cores = f"{_percent(row.cores_used_permille)}/{format_cores(cores_quota)}{lent}"
        held = f"{_memory(row.memory_used_bytes)}/{_memory(row.memory_quota_bytes)}"
        command = _command(row.command)
        cells: list[RenderableType] = [Text(row.tenant, style=style)]
        cells += [] if narrow else [Text(row.user)]
        cells.append(Text(NOT_KNOWN if row.device_index is None else str(row.device_index)))
        cells += [] if narrow else [_bar(row.cores_used_permille, allowed, over=over)]
        cells.append(Text(cores, style="red" if over else ""))
        cells += [] if narrow else [_bar(row.memory_used_bytes, row.memory_quota_bytes)]
        cells.append(Text(held, style="yellow" if row.refusals else ""))
        count = row.process_count
        cells.append(Text(NOT_KNOWN if count is None else str(count)))
        cells.append(Text(_suspension(line) + command, style=style))
        table.add_row(*cells)
    return table


def _suspension(line: TenantLine) -> str:
    """What precedes the command of a suspended tenant, such as "released, 3Gi on the host: "."""
    row = line.row
    if row.suspension in {"", "launches"}:
        return "suspended: " * bool(line.suspended)
    return f"{row.suspension}, {_memory(row.host_memory_bytes)} on the host: "


def _bar(used: int | None, quota: int | None, *, over: bool = False) -> Bar:
    part = (used or 0) / quota if quota else 0.0
    return Bar(part, style="red" if over else "yellow" if part > 0.95 else "green")


def _problems(picture: Picture) -> list[Text]:
    """Problems, one per line; a problem with the connection comes first."""
    said = [picture.problem] if picture.problem else []
    said += picture.notes
    of_tenants = {line.row.tenant: line.row.problem for line in picture.tenants if line.row.problem}
    said += [f"{tenant}: {why}" for tenant, why in of_tenants.items()]
    if len(said) > MOST_PROBLEMS:
        more = len(said) - MOST_PROBLEMS + 1
        said[MOST_PROBLEMS - 1 :] = [f"and {more} more: see penstock ps"]
    return [Text(_plain(one), style="red", no_wrap=True, overflow="ellipsis") for one in said]


def _percent(permille: int | None) -> str:
    return NOT_KNOWN if permille is None else f"{permille / 10:.1f}"


def _memory(size_bytes: int | None) -> str:
    return NOT_KNOWN if size_bytes is None else human_memory(size_bytes)


def _command(words: Sequence[str]) -> str:
    """The program's base name and its arguments."""
    return _plain(" ".join([words[0].rpartition("/")[2], *words[1:]])) if words else NOT_KNOWN


def _plain(text: str) -> str:
    """Replaces unprintable characters so that a command's name cannot move the cursor."""
    return "".join(one if one.isprintable() else " " for one in text)
