"""Generator of `docs/metrics.md` from the table of metrics: `python -m … FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.node.metering import metrics

_HEAD = """# Metrics

Written by `make gen` from `controller/penstock/node/metering/metrics.py`. `penstock agent` serves
the metrics at `http://127.0.0.1:9470/metrics`. Units are base units; a ratio goes from 0 to 1. An
unknown value has no sample. Counters start at 0 with the agent, or with the tenant if they come
from its usage page; `penstock usage` reports exactly what was used before.

Scrape with `honor_labels: true` (`deploy/prometheus/scrape.yaml`), so that `namespace`, `pod` and
`container` are the tenant's and not those of the agent's own Pod. They are empty outside
Kubernetes. There is deliberately no label for a process.
"""


def reference() -> str:
    """The text of `docs/metrics.md`."""
    lines = [_HEAD]
    for title, labels, described in metrics.GROUPS:
        lines += [f"## {title}", "", f"Labels: {_listed(labels)}.", ""]
        lines += ["| metric | type | unit | description |", "|---|---|---|---|"]
        rows: list[tuple[str, str, str, str, tuple[str, ...]]] = [
            (one.name, one.kind, one.unit, one.help, one.more_labels) for one in described
        ]
        if labels is metrics.NODE:
            loop = metrics.LOOP
            rows.append((loop.name, "histogram", loop.unit, loop.help, ()))
        for name, kind, unit, text, more in rows:
            also = f" Also labelled {_listed(more)}." if more else ""
            lines.append(f"| `{name}` | {kind} | {unit or '-'} | {text}{also} |")
        lines.append("")
    return "\n".join(lines)


def _listed(labels: tuple[str, ...]) -> str:
    return ", ".join(f"`{label}`" for label in labels)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
