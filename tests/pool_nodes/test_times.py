"""How fast the suspended stop, and what share of a card each application of a pool gets."""

from __future__ import annotations

import pytest
from tests.pool_nodes.support import namespaces

pytestmark = pytest.mark.timed


def test_the_suspended_stop_within_100_ms_of_the_decision(tmp_path):
    found = namespaces.run("preemption", tmp_path / "pool", 150)
    assert max(found["stopped_after_ms"]) <= 100, found["stopped_after_ms"]


def test_each_application_gets_its_blocks_within_2_points(tmp_path):
    found = namespaces.run("shares", tmp_path / "pool", 120, parts=[20, 30, 50], seconds=5)
    for name, granted in found["granted"].items():
        assert abs(found["measured"][name] - granted) <= 2, found
