"""States that a source of a test returns."""

from __future__ import annotations

from penstock.web import applications_data, bar_data, card_data


def state(names=("train",), phases=None, size=100, nodes=("node-0",), **fields):
    """A state in which each of `names` holds the same share of each node's only card."""
    phases = list(phases or ["running"] * len(names))
    each = size // max(1, len(names))
    held = [(1 + at * each, (at + 1) * each, at, None) for at in range(len(names))]
    row = {"why": "", "facts": [["blocks", str(each)]], "since": 1}
    rows = [{"name": name, "phase": phase, **row}
            for name, phase in zip(names, phases, strict=True)]  # fmt: skip
    card = card_data("0 H200", "none free", [bar_data("blocks", 1, size, held)])
    made = {
        "title": "Compute pool", "subtitle": "manager", "note": "a block is 1 TFLOPS",
        "finds": "node, application or kind",
        "totals": [{"label": "blocks free", "value": 0, "of": size, "more": "none"}],
        "find": "", "page": 0, "pages": 1, "found": len(nodes),
        "nodes": [{"name": node, "state": "there", "note": "", "figures": "",
                   "zones": [{"kind": "gpu", "cards": [card]}]} for node in nodes],
        "names": list(names), "phases": phases,
        "lists": [applications_data("Waiting", "waiting", 0, [], "Nobody waits."),
                  applications_data("Applications", "", len(rows), rows, "None.")],
        "history": {"unit": "blocks", "most": size, "series": ["held", "waited for", "suspended"],
                    "samples": [[1, 0, 0, 0], [None, size, 0, 0]]},
    }  # fmt: skip
    return {**made, **fields}
