"""A PyTorch program whose cards the pool moves to other nodes and changes while it trains."""

from __future__ import annotations

import pytest
from tests.pool_nodes.support import namespaces
from tests.pool_nodes.support.trainings import torch_python

STEPS = 100


def test_a_training_notices_only_pauses_when_compaction_moves_it_and_its_blocks_change(tmp_path):
    found = namespaces.run("card_moves", tmp_path / "pool", 300, python=torch_python(), steps=STEPS)
    assert found["left_out"] == []
    assert [(one["application"], one["failure"]) for one in found["moves"]] == [("train", None)]
    assert found["emptied"]
    # With other shares, and on one node as the undisturbed ones, only the order of additions is
    # another, which shows in no digit of float64 that is printed.
    assert found["losses"] == pytest.approx(found["undisturbed"], abs=2e-5)
    assert len(found["losses"]) == STEPS
    assert [e for e in found["events"] if e in {"moving", "moved", "resized"}] == [
        "moving", "moved", "resized", "resized",
    ]  # fmt: skip
    assert found["free_after"] == found["free_before"]
