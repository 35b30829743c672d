"""PyTorch programs whose device is made of the cards of several nodes."""

from __future__ import annotations

import pytest
from tests.pool_nodes.support import namespaces
from tests.pool_nodes.support.trainings import torch_python

STEPS = 40


def test_a_training_on_two_nodes_makes_way_and_goes_on_on_other_nodes_with_the_same_result(
    tmp_path,
):
    found = namespaces.run(
        "virtual_card", tmp_path / "pool", 300, python=torch_python(), steps=STEPS
    )  # fmt: skip
    assert len(found["before"]) == 2
    assert "node-1" in found["before"]
    assert "node-1" not in found["during"]
    assert found["losses"] == pytest.approx(found["expected"], abs=2e-5)  # of five digits
    assert len(found["losses"]) == STEPS
    assert "suspended" in found["events"]
    assert "resumed" in found["events"]
    assert found["free_after"] == found["free_before"]


def test_a_job_whose_node_dies_for_good_begins_again_on_another_one(tmp_path):
    found = namespaces.run("node_gone", tmp_path / "pool", 240, python=torch_python(), steps=STEPS)
    assert found["code"] == 0, found
    assert found["losses"][-STEPS:] == pytest.approx(found["expected"], abs=2e-5)  # of five digits
    told = [(one["event"], one["text"]) for one in found["told"]]
    (why,) = [text for event, text in told if event == "restarting"]
    assert why.startswith("the program ended with exit code 1"), told
    assert found["after"] == [{"node-1": "node-2", "node-2": "node-1"}[found["before"]]]
    assert found["said"].count("application default.job has ended") == 1
