"""Table of devices for `penstock devices`, with unavailable kinds of device in lines below it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model import human_memory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Group

    from penstock.devices.inventory import DeviceReport, Figure, Survey

NOT_AVAILABLE = "N/A"
HEADINGS = ("KIND", "NO", "MODEL", "ID", "MEMORY", "BUSY", "TEMP", "POWER", "HEALTH")
_COLOURS = {"ok": "green", "unhealthy": "yellow", "lost": "red"}


def device_table(found: Iterable[Survey]) -> Group:
    """One row per device. A device's partitions follow it if the device itself is listed."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    found = list(found)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in HEADINGS:
        right = heading in {"NO", "MEMORY", "BUSY", "TEMP", "POWER"}
        table.add_column(
            heading,
            justify="right" if right else "left",
            no_wrap=heading not in {"MODEL", "HEALTH"},
            overflow="fold",
        )
    for report in (one for survey in found for one in survey.devices):
        table.add_row(*_cells(report))
    lines = [
        f"{survey.kind}: {escape(str(survey.unavailable))}"
        for survey in found
        if survey.unavailable is not None
    ]
    tables = [table] if table.row_count else []
    return Group(*tables, *lines)


def _cells(report: DeviceReport) -> list[str]:
    from rich.markup import escape

    from penstock.devices.inventory import known

    used, total = known(report.memory_used_bytes), known(report.memory_total_bytes)
    memory = f"{_memory(used)} / {_memory(total)}"
    health = known(report.health)
    state = NOT_AVAILABLE
    if health is not None:
        colour = _COLOURS[health.state]
        state = f"[{colour}]{health.state}[/{colour}]" + (
            f" ({escape(health.reason)})" if health.reason else ""
        )
    return [
        report.kind,
        str(report.index),
        escape(report.model),
        escape(("+ " if report.parent else "") + report.id),
        memory if used is not None or total is not None else NOT_AVAILABLE,
        _scaled(report.busy_permille, 10, "%"),
        _scaled(report.temperature_celsius, 1, "C"),
        _scaled(report.power_milliwatts, 1000, "W"),
        state,
    ]


def _memory(size_bytes: int | None) -> str:
    return NOT_AVAILABLE if size_bytes is None else human_memory(size_bytes)


def _scaled(figure: Figure[int], divisor: int, unit: str) -> str:
    from penstock.devices.inventory import known

    value = known(figure)
    return NOT_AVAILABLE if value is None else f"{value / divisor:.0f} {unit}"
