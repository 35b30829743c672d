"""Writes the figures of a run into bench/README.md: `python bench/page.py RESULTS.json`.

RESULTS.json is the output of `penstock bench -o json`. The script replaces everything between the
two marks of the page; the rest of the page is written by hand.
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
    "The tenants are strict, and kernel times vary by ± 5 %. Errors are percentage points of the\n"
    "device's time, over windows of 1 s. A `graph` has four nodes that last `kernel us` together."
)
TENANTS_TEXT = (
    "Each tenant is a `penstock run` of one backlogged program with kernels of 500 us. In the\n"
    "elastic rows, only half of the device is granted."
)
CALLS_TEXT = (
    "The quota is 50 %. Calls that only change the state of the calling thread (capture mode,\n"
    "current context) are counted too."
)
SINGLY_TEXT = (
    "The launches go onto an idle stream or, in decode-like loops, onto the default stream in\n"
    "tokens of 200 launches, each of which the program waits for. Here and below, `load` is the\n"
    "load average during the measurement."
)
STAYS_TEXT = (
    "One gated process makes the same launches of 64 kinds before and after the work in the first\n"
    "column."
)
COLLECTIVES_TEXT = (
    "Each step has five kernels of 1 ms and a meeting, in which all ranks wait for each other. In\n"
    "the `streams` rows, the ranks are two streams on one device. After a row that did not end\n"
    "within its time limit, no further rows are measured with these ranks."
)
STARVED_TEXT = (
    "Busy loops run on the two processors that the program uses as well. The share due is the\n"
    "quota or, if less, the share that the program gets in this situation without the shim."
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
        if not rows:  # a run from before this section existed
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
