"""Layout of `penstock card top`: each program with its cards, and what its lines cost."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from penstock.cli.render.screen import Bar
from penstock.model import human_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from penstock.card.published import CardFigures, CostFigures, ProgramFigures

NARROW_COLUMNS = 110  # below this width, bytes moved are left out
OLD_S = 2.5
COSTS = 8  # shown of a program
UNKNOWN = "-"
WORDS = {
    "gather": "gathers", "download": "downloads", "data-dependent": "data-dependent",
    "new plans": "new plans",
}  # fmt: skip


def card_screen(
    programs: Sequence[ProgramFigures],
    problems: Sequence[str],
    *,
    width: int,
    height: int | None = None,
    help_: str = "",
) -> Group:
    """All programs in `width` columns and, if given, about `height` lines."""
    parts: list[RenderableType] = []
    if help_:
        parts.append(Text(help_.rjust(width), style="dim"))
    if not programs:
        parts.append(Text("no program uses a virtual card", style="dim"))
    rooms = COSTS
    if height is not None and programs:
        taken = len(parts) + len(problems) + sum(len(one.cards) + 6 for one in programs)
        rooms = min(COSTS, max(1, (height - taken) // len(programs)))
    for one in programs:
        parts += [_head(one, width), _cards(one.cards, width)]
        parts += [Text(f"  {text}", style="yellow") for text in _remarks(one)]
        if one.costs and rooms:
            parts.append(_costs(one.costs, rooms, width))
    return Group(*parts, *(Text(one, style="red") for one in problems))


def _head(one: ProgramFigures, width: int) -> Text:
    text = Text(f"{one.pid} {one.command}", style="bold", no_wrap=True, overflow="ellipsis")
    text.truncate(max(20, width - 70), overflow="ellipsis")
    return text.append(
        f"   {one.running_s:.0f} s, {one.steps} backward passes ({one.steps_per_s:.1f}/s), "
        f"{one.operations_per_s:,.0f} operations/s, waits {one.waited_percent:.0f} %"
        f"\n  loss {loss_text(one)}, {rate_text(one.samples_per_s)} samples/s",
        style="not bold",
    )


def loss_text(one: ProgramFigures) -> str:
    """The last loss of a program; "-" if none is known."""
    if one.loss is None:
        return UNKNOWN if one.is_loss_finite else "no finite number"
    return f"{one.loss:.5g}"


def rate_text(per_s: float | None) -> str:
    """How many a second; "-" if it is not known."""
    return UNKNOWN if per_s is None else f"{per_s:,.1f}"


def _remarks(one: ProgramFigures) -> list[str]:
    old = [card for card in one.cards if card.age_s > OLD_S]
    return [
        *filter(None, [one.problem]),
        *(f"card {card.name}: figures of {card.age_s:.0f} s ago; {card.doing}" for card in old),
    ]


def _cards(cards: Sequence[CardFigures], width: int) -> Table:
    table = Table.grid(padding=(0, 1), expand=True)
    table.show_header, table.header_style = True, "reverse"
    is_wide = width >= NARROW_COLUMNS
    table.add_column("CARD", no_wrap=True, overflow="ellipsis", max_width=max(10, width // 4))
    table.add_column("SHARE", justify="right", no_wrap=True)
    table.add_column("WORK", justify="right", no_wrap=True)
    table.add_column("", ratio=1, min_width=4)
    for heading in ("SAMPLES/S", "BUSY", "CARDS", "PROGRAM"):
        table.add_column(heading, justify="right", no_wrap=True)
    moved = ("UP", "DOWN", "GATHERED", "SUMMED") if is_wide else ()
    for heading in (*moved, "MEMORY/PEAK"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in cards:
        bytes_moved = (one.uploaded_bytes, one.downloaded_bytes, one.gathered_bytes,
                       one.summed_bytes)  # fmt: skip
        table.add_row(
            Text(one.name),
            f"{100 * one.share:.0f} %",
            f"{100 * one.work:.0f} %",
            Bar(one.busy_percent / 100, (one.busy_percent + one.cards_percent) / 100),
            rate_text(one.samples_per_s),
            *(f"{value:.0f} %" for value in
              (one.busy_percent, one.cards_percent, one.program_percent)),
            *(human_memory(value) for value in bytes_moved if is_wide),
            f"{human_memory(one.used_bytes)}/{human_memory(one.peak_bytes)}",
        )  # fmt: skip
    return table


def _costs(costs: Sequence[CostFigures], most: int, width: int) -> Table:
    table = Table.grid(padding=(0, 1), expand=True)
    table.show_header, table.header_style = True, "reverse"
    table.add_column("SLOW", no_wrap=True)
    table.add_column("LINE", no_wrap=True, overflow="ellipsis", max_width=max(12, width // 4))
    for heading in ("COUNT", "BYTES", "WAITED"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("WHAT AND WHY", ratio=1, no_wrap=True, overflow="ellipsis")
    for one in costs[:most]:
        table.add_row(
            WORDS.get(one.what, one.what),
            Text(_short(one.line) or "-"),
            str(one.count),
            human_memory(one.size_bytes),
            f"{one.waited_s:.1f}s",
            Text(": ".join(filter(None, (one.operation, one.reason)))),
        )
    return table


def _short(line: str) -> str:
    """The line with the last folder of its file: the folders above say little."""
    return "/".join(PurePath(line).parts[-2:])
