"""PyTorch programs on the nodes, with a virtual card of the pool."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.pool_nodes.support.pool import Pool

PROJECT = Path(__file__).parents[3]
PROGRAM = PROJECT / "examples" / "pytorch" / "images.py"
PYTHON = PROJECT / "build" / "torch" / "bin" / "python"
LOOKS_S = 0.1
WITHIN_S = 60.0


def torch_python() -> str:
    """The interpreter that has torch; without it the test is skipped."""
    if not PYTHON.exists():
        pytest.skip("no environment with torch: make build/torch/.installed")
    return str(PYTHON)


@dataclass
class Training:
    """`penstock run --tflops`, whose program prints a line for each step."""

    pool: Pool
    node: str
    name: str
    blocks: int
    python: str
    steps: int
    wrapper: tuple[str, ...] = ()  # Python's arguments before the program
    recovers: bool = False  # whether cards come back
    process: subprocess.Popen[str] | None = None

    @property
    def out(self) -> Path:
        return self.pool.folder / f"{self.name}.out"

    def start(self) -> Training:
        """Claims its blocks and starts it; what it prints goes into a file."""
        variable = f"PENSTOCK_CARD_RECOVERY={'on' if self.recovers else 'off'}"
        shell = f'{variable} exec "$0" "$@" > {self.out} 2>&1'
        self.process = self.pool.penstock_on(
            self.node, "run", f"--tflops={self.blocks}", f"--name={self.name}", "--priority=1",
            "--", "sh", "-c", shell, self.python, *self.wrapper, PROGRAM, "--double",
            f"--steps={self.steps}",
        )  # fmt: skip
        return self

    def steps_done(self) -> int:
        return len(self.losses())

    def losses(self) -> list[float]:
        text = self.out.read_text() if self.out.exists() else ""
        return losses_in(text.rpartition("\n")[0])

    def wait_for_steps(self, count: int) -> None:
        """Waits until it has done so many steps."""
        until = time.monotonic() + WITHIN_S
        while self.steps_done() < count:
            assert self.process.poll() is None, self.told()
            assert time.monotonic() < until, self.told()
            time.sleep(LOOKS_S)

    def wait_for_cards(self, *nodes: str) -> None:
        """Waits until its cards are on these nodes and it has trained there."""
        until = time.monotonic() + WITHIN_S
        while {node for node in self.pool.machines if self.cards_on(node)} != set(nodes):
            assert self.process.poll() is None, self.told()
            assert time.monotonic() < until, self.told()
            time.sleep(LOOKS_S)
        self.wait_for_steps(self.steps_done() + 2)

    def cards_on(self, node: str) -> list[int]:
        """The workers of its cards on a node."""
        return self.pool.card_pids(node, self.name)

    def wait_for_event(self, event: str) -> None:
        """Waits until the pool has told of this event about it."""
        until = time.monotonic() + WITHIN_S
        while not any(
            e["event"] == event and e["application"] == self.name for e in self.pool.events()
        ):
            assert self.process.poll() is None, self.told()
            assert time.monotonic() < until, self.told()
            time.sleep(LOOKS_S)

    def result(self) -> list[float]:
        """The losses, when it has ended."""
        _, errors = self.process.communicate(timeout=WITHIN_S)
        assert self.process.returncode == 0, f"{errors}\n{self.told()}"
        return self.losses()

    def expected(self) -> list[float]:
        """The losses of the same program on the CPU."""
        done = subprocess.run(
            [self.python, str(PROGRAM), "--double", "--device=cpu", f"--steps={self.steps}"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return losses_in(done.stdout)

    def told(self) -> str:
        """What explains a failure."""
        logs = [*self.pool.folder.glob("*.log")]
        tails = [f"{log.name}:\n{log.read_text()[-1500:]}" for log in logs]
        out = self.out.read_text()[-3000:] if self.out.exists() else "no output"
        state = self.pool.state()
        waits = [(one["name"], one["phase"], one["reason"]) for one in state["applications"]]
        nodes = [(one["name"], one["state"], one["free_blocks"]) for one in state["nodes"]]
        return "\n".join([*tails, out, str(nodes), str(waits)])


def losses_in(text: str) -> list[float]:
    """The losses in what the program has printed."""
    lines = [line for line in text.splitlines() if line.startswith("step ")]
    return [float(line.rpartition(" ")[2]) for line in lines]
