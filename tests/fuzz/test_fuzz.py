"""Readers of what a tenant wrote, or what lies in a file: no input makes them stray.

Each target runs its committed corpus and then for a moment on its own; `make fuzz` runs on.
"""

from __future__ import annotations

import pytest
from tests.fuzz.support import clang, fuzzing

SECONDS_EACH = 1


@pytest.fixture(scope="module")
def targets():
    try:
        return fuzzing.build()
    except clang.NotToBeHadError as why:
        pytest.skip(f"no clang with libFuzzer: {why}")


@pytest.mark.parametrize("target", fuzzing.TARGETS)
def test_no_input_makes_a_target_crash_hang_or_break_its_property(targets, tmp_path, target):
    assert any((fuzzing.CORPUS / target).iterdir())
    said = fuzzing.run(target, f"-max_total_time={SECONDS_EACH}", corpus=tmp_path)
    assert "DONE" in said
