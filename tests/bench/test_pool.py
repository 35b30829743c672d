"""The benchmark of the pool counts what happened."""

from __future__ import annotations

from penstock.bench.pool import run


def test_a_small_pool_is_kept_as_full_as_asked_and_moves_stay_within_their_bound():
    still, moving = run(nodes=10, operations=2000, used=0.8)
    assert (still.moves, moving.moves) == ("none", "10 in 1,000")
    assert still.moves_per_1000 == 0
    assert 0 < moving.moves_per_1000 <= 10
    assert moving.one_run_percent > still.one_run_percent > 50
    for row in (still, moving):
        assert row.blocks == 1000
        assert 75 < row.used_percent < 90
        assert row.applications > 50
