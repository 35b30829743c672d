"""Random programs see no shim, end in time, and are charged for what they hold."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tests.programs_at_random.support import build, keeping, playing, shrinking
from tests.programs_at_random.support.writing import writer

if TYPE_CHECKING:
    from pathlib import Path

COUNT = int(os.environ.get("PENSTOCK_RANDOM_PROGRAMS", "200"))
FIRST = int(os.environ.get("PENSTOCK_RANDOM_FIRST", "0"))
PORTION = max(1, min(25, COUNT // 4))
AT_ONCE = 2  # programs beside each other; each at three quotas at once
MOST_SHRUNK = 1  # of a portion: each takes minutes


@pytest.fixture(scope="session")
def player(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.player(tmp_path_factory.mktemp("player"))


def test_a_script_is_the_same_each_time_and_each_line_of_it_can_be_read() -> None:
    for seed in range(50):
        script = writer.write(seed)
        assert script == writer.write(seed)
        units = shrinking.split(script)
        assert shrinking.whole(script, units) == units  # everything that is used is made


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, PORTION))
def test_random_programs_see_no_shim_end_in_time_and_are_charged_for_what_they_hold(
    player: Path, first: int
) -> None:
    """Every fourth one is short of memory: then refusals are answers too."""

    def faults_of(seed: int) -> list[str]:
        return playing.play(player, keeping.script_of(seed), keeping.settings_of(seed))

    seeds = range(first, min(first + PORTION, FIRST + COUNT))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(seeds, pool.map(faults_of, seeds), strict=True))
    failed = [seed for seed, faults in found.items() if faults]
    told = []
    for number, seed in enumerate(failed):
        script, faults = keeping.script_of(seed), found[seed]
        if number < MOST_SHRUNK:
            script, faults = shrinking.shrink(player, script, faults, keeping.settings_of(seed))
        told.append(keeping.told(seed, script, faults))
    assert not failed, "\n\n".join(told)


@pytest.mark.parametrize("kept", keeping.kept())
def test_a_program_that_failed_once_does_not_fail_again(player: Path, kept: str) -> None:
    script = (keeping.KEPT / f"{kept}.script").read_text()
    expected = keeping.EXPECTED.get(kept)
    runs = 1 if expected is None else keeping.MOST_RUNS
    faults: list[str] = []
    for _ in range(runs):
        faults = faults or playing.play(player, script, keeping.settings_in(script))
    if expected is None:
        assert not faults, "\n".join(faults)
    elif faults:
        pytest.xfail(f"{expected}: {faults[0]}")
    elif kept not in keeping.NOW_AND_THEN:
        pytest.fail(f"{kept} fails no more: take it out of EXPECTED")
