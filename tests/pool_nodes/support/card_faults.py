"""Faults of cards on other nodes than their program, at random moments of its training."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.pool_nodes.support import namespaces
from tests.pool_nodes.support.trainings import PROGRAM, Training

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.pool_nodes.support.pool import Pool

CUT_S = 5.0  # longer than any card may be silent
SHORT_CUT_S = 0.5
THROTTLED_S, THROTTLED_TO = 1.5, 0.1
TURN_S = 0.1  # of a worker that is throttled
GONE_WITHIN_S = 60.0

# Runs a program, and says when and why it lost its card.
SAYS_LOSS = """
import runpy, sys, time
from penstock.card.link import CardError
try:
    runpy.run_path(sys.argv.pop(1), run_name="__main__")
except CardError as error:
    print("lost", time.monotonic(), error, flush=True)
    sys.exit(1)
"""


@dataclass(frozen=True)
class Victim:
    """A node with the worker of a card there, and the program whose card it is."""

    pool: Pool
    node: str
    pid: int
    program: subprocess.Popen[str]

    @property
    def address(self) -> str:
        return self.pool.addresses[self.node]

    def wait(self, seconds: float) -> None:
        """Waits for so long, or until the program has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.program.wait(seconds)


def kill(at: Victim) -> None:
    os.kill(at.pid, signal.SIGKILL)


def hang(at: Victim) -> None:
    os.kill(at.pid, signal.SIGSTOP)


def throttle(at: Victim) -> None:
    """The worker gets a tenth of its time, as under a quota; a cgroup could outlive the test."""
    until = time.monotonic() + THROTTLED_S
    while time.monotonic() < until:
        os.kill(at.pid, signal.SIGSTOP)
        time.sleep(TURN_S * (1 - THROTTLED_TO))
        os.kill(at.pid, signal.SIGCONT)
        time.sleep(TURN_S * THROTTLED_TO)


def cut(at: Victim, seconds: float = CUT_S) -> None:
    namespaces.cut(at.node, at.address)
    at.wait(seconds)
    namespaces.mend(at.node, at.address)


def cut_program(at: Victim) -> None:
    """The program's node is cut off, so all its cards are silent."""
    cut(at)


def cut_shortly(at: Victim) -> None:
    cut(at, SHORT_CUT_S)


def unplug(at: Victim) -> None:
    namespaces.set_link(at.node, "down")
    at.wait(CUT_S)
    namespaces.set_link(at.node, "up")


def kill_agent(at: Victim) -> None:
    """The agent of a card's node."""
    agent = at.pool.agents[at.node]
    agent.kill()
    at.wait(SHORT_CUT_S)
    agent.start()


def kill_own_agent(at: Victim) -> None:
    """The agent of the program's node, through which it asks for cards."""
    kill_agent(at)


def kill_manager(at: Victim) -> None:
    at.pool.manager.kill()
    at.wait(SHORT_CUT_S)
    at.pool.manager.start()


FAULTS: dict[str, Callable[[Victim], None]] = {
    one.__name__: one
    for one in (
        kill,
        cut,
        throttle,
        hang,
        cut_shortly,
        unplug,
        cut_program,
        kill_agent,
        kill_own_agent,
        kill_manager,
    )
}

OF_PROGRAM = {"cut_program", "kill_own_agent"}


@dataclass
class Moment:
    """One training with one fault; `number` decides which of `kinds`, where and when."""

    pool: Pool
    number: int
    node: str
    blocks: int
    python: str
    steps: int
    recovers: bool
    kinds: list[str]

    def run(self) -> dict:
        """What the program said, and what was left."""
        chance = random.Random(self.number)  # noqa: S311 - a moment, the same in each run
        kind = self.kinds[self.number % len(self.kinds)]
        name = f"train-{self.number}-{self.recovers:d}"
        train = Training(
            self.pool, self.node, name, self.blocks, self.python, self.steps, ("-c", SAYS_LOSS),
            self.recovers,
        ).start()  # fmt: skip
        train.wait_for_steps(chance.randrange(1, self.steps // 2))
        cards = {node: pids for node in self.pool.machines if (pids := train.cards_on(node))}
        pids = {pid: node for node in cards for pid in cards[node]}
        pid = chance.choice(list(pids))
        node = self.node if kind in OF_PROGRAM else pids[pid]
        time.sleep(chance.uniform(0, 0.5))
        before, struck_s = train.steps_done(), time.monotonic()
        FAULTS[kind](Victim(self.pool, node, pid, train.process))
        train.process.communicate(timeout=GONE_WITHIN_S)
        return {
            "kind": kind,
            "recovers": self.recovers,
            "nodes": list(cards),
            "pids": cards.get(node, list(pids)),
            "steps_before": before,
            "code": train.process.returncode,
            "losses": train.losses(),
            **_loss(train.out.read_text(), struck_s),
            "free": self.pool.free_blocks_when_all_is_over(),
            "left": [pid for node in self.pool.machines for pid in train.cards_on(node)],
        }


def _loss(output: str, struck_s: float) -> dict:
    """What the program said of a lost card, and how long after the fault."""
    lines = [line for line in output.splitlines() if line.startswith("lost ")]
    if not lines:
        return {"lost": "", "told_after_s": 0.0}
    at_s, _, text = lines[-1].removeprefix("lost ").partition(" ")
    return {"lost": text, "told_after_s": float(at_s) - struck_s}


def undisturbed(python: str, speeds: list[int], steps: int) -> subprocess.Popen[str]:
    """The same program on cards of this node with the same speeds."""
    cards = ",".join(f"cpu={speed}" for speed in speeds)
    return subprocess.Popen(
        [python, str(PROGRAM), "--double", f"--steps={steps}"],
        env={**os.environ, "PENSTOCK_CARD": cards}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
