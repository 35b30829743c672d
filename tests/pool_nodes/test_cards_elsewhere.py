"""Cards on other nodes than their program that are killed, stopped, throttled or cut off."""

from __future__ import annotations

import os

import pytest
from tests.pool_nodes.support import namespaces
from tests.pool_nodes.support.card_faults import FAULTS
from tests.pool_nodes.support.trainings import torch_python

MOMENTS = int(os.environ.get("PENSTOCK_TEST_MOMENTS", "2"))
STEPS = 24
SILENT_S = 2 + 2  # after so long at the latest; the second part is for a busy machine
HARMLESS = {"throttle", "cut_shortly", "kill_agent", "kill_own_agent", "kill_manager"}
KINDS = os.environ.get("PENSTOCK_TEST_FAULTS", ",".join(FAULTS)).split(",")


# Two cards of a node exchange at their board first.
@pytest.mark.parametrize(("on_first", "moments"), [(1, MOMENTS), (2, max(1, MOMENTS // 2))])
def test_a_fault_on_another_node_is_named_or_harmless_or_survived_and_gives_no_other_data(
    tmp_path, on_first, moments
):
    found = namespaces.run(
        "card_losses", tmp_path / "pool", 120 + 90 * moments,
        python=torch_python(), moments=moments, steps=STEPS, on_first=on_first, kinds=KINDS,
    )  # fmt: skip
    assert len(found["undisturbed"]) == STEPS
    # The same cards give the same bits; those of one node add up in another order.
    longest = max((one["losses"] for one in found["moments"]), key=len)
    assert longest == pytest.approx(found["undisturbed"][: len(longest)], rel=1e-3, abs=2e-5)
    for one in found["moments"]:
        assert one["nodes"] == ["node-1", "node-2"]
        assert one["losses"] == longest[: len(one["losses"])], one
        check_outcome(one)
        assert one["free"] == found["free"], one
        assert one["left"] == [], one


def check_outcome(one):
    """An error that names the card, or all steps: always so if lost cards come back."""
    is_late = one["steps_before"] > STEPS - 4  # it may have ended before its card was lost
    if one["recovers"] or one["kind"] in HARMLESS or (is_late and not one["lost"]):
        assert (one["code"], len(one["losses"])) == (0, STEPS), one
        return
    assert one["code"] == 1, one
    assert one["lost"].startswith("card "), one
    assert any(f", pid {pid})" in one["lost"] for pid in one["pids"]), one
    assert one["told_after_s"] < SILENT_S, one
