"""Writes the figures of a run into bench/README.md: `python bench/page.py RESULTS.json`.

RESULTS.json is what `penstock bench -o json` printed. Everything between the two marks of the page
is replaced; what stands around them is written by hand.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Row = dict[str, Any]
    Column = tuple[str, Callable[[Row], object]]

PAGE = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- figures: written by bench/page.py -->", "<!-- end of figures -->"


def key(name: str, form: str = "{}") -> Callable[[Row], object]:
    """The column that shows `name` of a row."""
    return lambda row: form.format(row[name])


QUOTA: list[Column] = [
    ("quota", key("quota", "{:g}")),
    ("kernel us", key("kernel_us", "{:g}")),
    ("launch", key("launch")),
    ("processes", key("processes")),
    ("mean error", key("mean_error_points", "{:.2f}")),
    ("p95", key("p95_error_points", "{:.2f}")),
    ("bias", key("bias_points", "{:+.2f}")),
    ("worst window from 200 ms after a change on", key("settled_error_points", "{:.2f}")),
]
TENANTS: list[Column] = [
    ("tenants", key("tenants")),
    ("mode", key("mode")),
    ("granted", key("shares")),
    ("due", key("due")),
    ("got", key("got")),
    ("worst error", key("worst_error_points", "{:.2f}")),
    ("total", key("total_percent", "{:.1f}")),
]
CALLS: list[Column] = [
    ("workload", key("workload")),
    ("launches/s", key("launches_per_s", "{:.0f}")),
    ("added calls/s", key("added_calls_per_s", "{:.0f}")),
]
LAUNCH: list[Column] = [
    ("call", key("call")),
    ("arm", key("arm")),
    ("native median ns", key("native_median_ns", "{:.0f}")),
    ("added median ns", key("added_median_ns", "{:.0f}")),
    ("quartiles", lambda row: f"{row['added_low_ns']:.0f} to {row['added_high_ns']:.0f}"),
    ("added mean ns", key("added_mean_ns", "{:.0f}")),
]
SINGLY: list[Column] = [
    ("pattern", key("pattern")),
    ("threads", key("threads")),
    ("kinds", key("kinds")),
    ("cores", key("cores", "{:g}")),
    ("native median ns", key("native_median_ns", "{:.0f}")),
    ("added median ns", key("added_median_ns", "{:.0f}")),
    ("quartiles", lambda row: f"{row['added_low_ns']:.0f} to {row['added_high_ns']:.0f}"),
    ("added mean ns", key("added_mean_ns", "{:.0f}")),
    ("asked", lambda row: "" if row["target_ns"] is None else f"<= {row['target_ns']:g}"),
    ("load", key("load")),
]
STAYS: list[Column] = [
    ("after", lambda row: f"{row['reached']:,} of {row['wanted']:,} {row['after']}"),
    ("before ns", key("before_ns", "{:.0f}")),
    ("after ns", key("after_ns", "{:.0f}")),
    ("growth without shim", key("native_growth_ns", "{:+.0f}")),
    ("stays ns", key("stays_ns", "{:+.0f}")),
    ("quartiles", lambda row: f"{row['stays_low_ns']:+.0f} to {row['stays_high_ns']:+.0f}"),
    ("the last of them, each: native ns", key("native_step_ns", "{:,.0f}")),
    ("under the shim ns", key("step_ns", "{:,.0f}")),
    ("load", key("load")),
]
COLLECTIVES: list[Column] = [
    ("devices", key("devices")),
    ("ranks", key("ranks")),
    ("quota", key("quota", "{:g}")),
    ("one held up, ms", key("held_up_ms", "{:g}")),
    ("steps again after, ms", key("recovered_ms", "{:.0f}")),
    ("full steps/s", key("full_steps_per_s", "{:.0f}")),
    ("steps/s", key("steps_per_s", "{:.1f}")),
    ("of the quota's share, %", key("of_quota_percent", "{:.0f}")),
    ("busiest device, %", key("busiest_percent")),
    (
        "ended",
        lambda row: (
            "yes"
            if row["ended"]
            else f"**not in {row['bound_s']:g} s** ({row['steps']} of {row['wanted_steps']} steps)"
        ),
    ),
    ("load", key("load")),
]
STARVED: list[Column] = [
    ("quota", key("quota", "{:g}")),
    ("kernel us", key("kernel_us", "{:g}")),
    ("processes", key("processes")),
    ("waited for", lambda row: "yes" if row["sync_every"] else ""),
    ("without the shim, %", key("full_percent", "{:.0f}")),
    ("due, %", key("due_percent", "{:.0f}")),
    ("mean error", key("mean_error_points", "{:.2f}")),
    ("worst window", key("worst_error_points", "{:.2f}")),
    ("bias", key("bias_points", "{:+.2f}")),
    ("load", key("load")),
]
FIGURES: list[Column] = [
    ("what", key("what")),
    ("to reach", key("aim")),
    ("measured", key("measured")),
    ("runs", key("runs")),
    ("reached", lambda row: "yes" if row["reached"] else "**no**"),
]
QUOTA_TEXT = (
    "Strict, kernel times ± 5 %; windows of 1 s, points of the device's time. `graph`: four nodes\n"
    "that last `kernel us` together."
)
TENANTS_TEXT = (
    "`penstock run` with one backlogged program of 500 us kernels each. Elastic: half of the\n"
    "device is granted."
)
CALLS_TEXT = (
    "At 50 %; calls that only change this thread's state (capture mode, current context) count\n"
    "as well."
)
SINGLY_TEXT = (
    "Onto an idle stream, and in decode-like loops on the default stream: tokens of 200 launches,\n"
    "each waited for. `load`: load average beside the figure, here and below."
)
STAYS_TEXT = "The same launches of 64 kinds by one process, gated, before and after."
COLLECTIVES_TEXT = (
    "Steps of five kernels of 1 ms and a meeting of all ranks; `streams`: two on one device. A\n"
    "row that did not end in its bound is the last one of its ranks."
)
STARVED_TEXT = (
    "Beside busy loops on the two processors that the program has as well. Due is the quota, or\n"
    "what the program gets there without the shim where that is less."
)
SECTIONS: list[tuple[str, str, str, list[Column]]] = [
    ("backlogged", "Backlogged", QUOTA_TEXT, QUOTA),
    ("bias", "The same for a minute", "", QUOTA[:-1]),
    ("waiting", "Launch and wait", "", [column for column in QUOTA if column[0] != "launch"]),
    ("tenants", "Tenants side by side", TENANTS_TEXT, TENANTS),
    ("calls", "Driver calls of the shim's own", CALLS_TEXT, CALLS),
    ("launch", "Added to a driver call", "", LAUNCH),
    ("singly", "Launches that come singly", SINGLY_TEXT, SINGLY),
    ("stays", "Costs that stay", STAYS_TEXT, STAYS),
    ("collectives", "Ranks that meet", COLLECTIVES_TEXT, COLLECTIVES),
    ("starved", "Short of processors", STARVED_TEXT, STARVED),
]


def table(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """`rows` as a Markdown table."""
    lines = ["| " + " | ".join(name for name, _ in columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(cell(row)) for _, cell in columns) + " |" for row in rows]
    return "\n".join(lines)


def figures(report: dict[str, Any]) -> str:
    """The part of the page that comes from a run."""
    machine = report["machine"]
    where = f"{machine['cores']} cores of {machine['processor']} ({machine['kernel']})"
    head = f"{machine['date']}, version {machine['version']}, {where}.\n"
    head += f"Device: **{machine['device']}**."
    parts = [head, table(report["figures"], FIGURES)]
    for name, title, text, columns in SECTIONS:
        rows = [row for row in report["details"].get(name, ()) if row.get("call") != "refuse"]
        if not rows:  # a run of before this section was there
            continue
        parts += [f"### {title}", text, table(rows, columns)]
    return "\n\n".join(part for part in parts if part)


def main() -> None:
    """Replaces the figures of the page."""
    report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    if not after:
        sys.exit(f"{PAGE} has lost its marks: {BEGIN} … {END}")
    text = f"{before}{BEGIN}\n{figures(report)}\n{END}{after}"
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
