"""The table of peers' faults names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "faults-of-peers.md"
ROWS = [line for line in TABLE.read_text().splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:40])
def test_every_fault_names_tests_that_exist_or_the_issue_that_will_have_them(row):
    named = re.findall(r"`(tests/\S+)::(\w+)`", row)
    assert named or re.search(r"issue", row)
    for path, name in named:
        text = (ROOT / path).read_text()
        form = r"^TEST\({}\)" if path.endswith(".c") else r"^(?:async )?def {}\("
        assert re.search(form.format(name), text, re.MULTILINE), f"{path} has no {name}"


def test_the_table_is_whole():
    assert len(ROWS) >= 20
