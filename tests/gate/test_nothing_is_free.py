"""Neither a failed recapture nor a release of a context lets work run free of charge."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import pytest
from tests.gate.test_callbacks import WITHOUT_END
from tests.gate.test_held import ENDLESS

from penstock.bench.stage import Stage, windows

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.timed


def test_a_recapture_that_fails_leaves_no_stream_free_of_charge(
    program: Callable[[str], str],
) -> None:
    with Stage("h200") as stage:
        stage.start(stage.tenant("tenant", 30), [WITHOUT_END], program=program("callbacks"))
        stage.wait_until_busy(["tenant"])
        stage.watch(0.5)
        percents = [window.percent for window in windows(stage.watch(2.2), "tenant")]
        assert abs(statistics.fmean(percents) - 30) <= 3


def test_releases_that_are_not_the_last_leave_the_quota_as_it_is(
    program: Callable[[str], str],
) -> None:
    with Stage("h200") as stage:
        stage.start(stage.tenant("tenant", 40), [ENDLESS], program=program("held"))
        stage.wait_until_busy(["tenant"])
        stage.watch(0.5)
        percents = [window.percent for window in windows(stage.watch(2.2), "tenant")]
        assert abs(statistics.fmean(percents) - 40) <= 3
