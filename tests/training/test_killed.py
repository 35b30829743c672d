"""A training that is killed goes on from its checkpoint, and has lost no step that it had kept."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from tests.training.conftest import PROGRAMS

from penstock.training.run import find

MOMENTS = int(os.environ.get("PENSTOCK_TEST_MOMENTS", "2"))
STEPS, KILLS = 80, 2
WITHIN_S = 120


def training(folder, name, **options):
    command = [
        sys.executable, "-m", "penstock", "train", "run", "--cards=cpu=1,cpu=2", f"--name={name}",
        f"--restarts={KILLS}", "--", sys.executable, str(PROGRAMS / "resuming.py"),
        str(folder / name), str(STEPS),
    ]  # fmt: skip
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, **options)


def losses(text):
    """The loss of each step; a step whose loss was printed, but not its end, comes again."""
    lines = [line.split() for line in text.splitlines() if line[:1].isdigit()]
    return {int(step): float(loss) for step, loss in lines}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    environment = {**os.environ, "PENSTOCK_TRAIN_DIR": str(folder / "runs")}
    out, _ = training(folder, "own", env=environment).communicate(timeout=WITHIN_S)
    found = losses(out)
    assert len(found) == STEPS
    return found


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_a_training_whose_program_is_killed_goes_on_from_its_checkpoint_with_the_same_losses(
    undisturbed, moment, tmp_path
):
    chance = random.Random(moment)  # noqa: S311 - a moment, the same in each run
    killed, lines = [], []
    at_steps = [chance.randrange(1, 15), chance.randrange(20, 35)]
    with training(tmp_path, "own") as process:
        for line in process.stdout:
            lines.append(line)
            if len(killed) == KILLS or not line[:1].isdigit():
                continue
            pid = find("own").state().pid
            if pid and pid not in killed and int(line.split()[0]) >= at_steps[len(killed)]:
                time.sleep(0.05 * chance.random())
                killed.append(pid)
                os.kill(pid, signal.SIGKILL)
        assert process.wait(WITHIN_S) == 0
    assert len(killed) == KILLS
    assert losses("".join(lines)) == undisturbed
    assert [one.event for one in find("own").events()].count("restarting") == KILLS
