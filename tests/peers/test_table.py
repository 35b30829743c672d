"""The table of peers' faults names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support import named_tests

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "faults-of-peers.md"
ROWS = [line for line in TABLE.read_text().splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:40])
def test_every_fault_names_tests_and_each_of_them_exists(row):
    fault, answer, shown_by = (cell.strip() for cell in row.strip("| ").split(" | "))
    assert fault
    assert answer
    named = [re.fullmatch(r"`(tests/\S+)::(\w+)`", one) for one in shown_by.split(", ")]
    assert all(named), shown_by
    for one in named:
        assert named_tests.is_defined(ROOT / one[1], one[2]), one[0]


def test_the_table_has_25_different_rows():
    assert len(ROWS) == 25
    assert len({row.split("|")[1] for row in ROWS}) == len(ROWS)
