"""The demo of the virtual card: a real training, watched and compared, within two minutes."""

import json
import subprocess
import sys
import time

import pytest

from penstock.bench import card_demo
from penstock.bench.card_demo import Step, run
from penstock.model import PenstockError


def test_the_demo_shows_equal_losses_shares_slow_lines_and_writes_a_trace(tmp_path):
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "demo", "card", "--steps", "40"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - began_s < 120
    for word in ("14 %", "29 %", "57 %", "penstock card top", "aten::median", "ui.perfetto.dev",
                 "the losses are those of the CPU"):  # fmt: skip
        assert word in done.stdout
    events = json.loads((tmp_path / "penstock-card-trace.json").read_text())
    assert any(one["name"] == "gather" for one in events)


def test_losses_that_differ_are_not_taken_for_equal():
    assert Step(10, 1.0, 1.0004).is_equal
    assert not Step(10, 1.0, 1.01).is_equal
    assert not Step(10, float("nan"), 1.0).is_equal


def test_a_program_that_fails_is_reported(tmp_path, monkeypatch):
    program = tmp_path / "program.py"
    program.write_text("raise SystemExit('no memory')")
    monkeypatch.setattr(card_demo, "PROGRAM", program)
    with pytest.raises(PenstockError, match="the program of the demo failed: no memory"):
        run(10, tmp_path / "trace.json")
