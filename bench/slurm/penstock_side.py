"""Penstock's side of the comparison: a manager and one agent, on unix sockets."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from bench.slurm.measure import RULES, RUNNING_WITHIN_S, WATCHED_S, Mix, Round, held_bytes
from bench.slurm.programs import GIB, Program

from penstock_shim.simulator import Machine

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

BLOCKS = 989  # of a simulated H200
PLACES = ("meter", "cdi", "shim")  # of the agent, each a folder of this run
CONTEXT_GIB = 2  # what a program needs beside what it holds


class PenstockPool:
    """A pool of this machine. Use it as a context manager: it ends all that it started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "CUDA_"))}
        state = {"PENSTOCK_STATE_DIR": str(self.folder / "state")}
        return {**kept, **state, "PENSTOCK_SIM_KERNELS": RULES}

    def __enter__(self) -> Self:
        socket = self.folder / "pool.sock"
        try:
            self._spawn("pool", "serve", f"--database=sqlite:///{self.folder}/pool.db",
                        f"--socket={socket}", "--min-run=0s")  # fmt: skip
            self._spawn("agent", "--simulate=h200", f"--pool={socket}", "--metrics=",
                        *(f"--{part}-dir={self.folder}/{part}" for part in PLACES),
                        )  # fmt: skip
            self._await_blocks()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(30)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def machine(self) -> Machine:
        """The agent's simulated machine."""
        return Machine(self.folder / "state" / "machines" / "h200x1")

    def acquire(self, program: Program, blocks: int, priority: int) -> subprocess.Popen[bytes]:
        """Starts `penstock pool acquire` with the program."""
        memory = f"{program.hold_bytes // GIB + CONTEXT_GIB}Gi"
        words = [f"--tflops={blocks}", f"--priority={priority}", f"--memory={memory}", "--wait=1m",
                 f"--name={program.name}", "-q", "--", *program.command()]  # fmt: skip
        with program.output.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "penstock", "pool", "acquire", *words],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def _spawn(self, *words: str) -> None:
        with (self.folder / f"{words[0]}.log").open("wb") as log:
            command = [sys.executable, "-m", "penstock", *words]
            self._daemons.append(
                subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
            )

    def run(self, *words: str) -> str:
        """What `penstock pool …` says."""
        command = [sys.executable, "-m", "penstock", "pool", *words]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout

    def _await_blocks(self) -> None:
        until = time.monotonic() + RUNNING_WITHIN_S
        while f'"free_blocks": {BLOCKS}' not in self.run("status", "-o", "json"):
            if time.monotonic() > until:
                raise SystemExit(f"Penstock's pool did not start; see {self.folder}")
            time.sleep(0.1)


def penstock_round(pool: PenstockPool, folder: Path, mix: Mix) -> Round:
    """Penstock's round.

    Raises:
        SystemExit: the less urgent programs do not run.
    """
    lower = [Program(folder, f"low{n}-{folder.name}", mix.held_gib * GIB) for n in (1, 2)]
    urgent = Program(folder, f"urgent-{folder.name}", mix.urgent_gib * GIB)
    started = [pool.acquire(one, BLOCKS // 2, 1) for one in lower]
    try:
        for one in lower:
            if one.await_first_launch(RUNNING_WITHIN_S) is None:
                raise SystemExit(f"{one.name} does not run: {one.output.read_text()}")
        time.sleep(WATCHED_S)
        for one in lower:
            if started[lower.index(one)].poll() is not None:
                raise SystemExit(f"{one.name} has ended: {one.output.read_text()}")
        submitted_ns = time.monotonic_ns()
        started.append(pool.acquire(urgent, BLOCKS, 10))
        told = urgent.await_first_launch()
        time.sleep(WATCHED_S)
        with pool.machine() as machine:
            held = held_bytes(machine, [one.name for one in lower])
        latest_ns = max(one.progress().latest_ns for one in lower)
    finally:
        pool.run("release", "--yes", "--grace=0", urgent.name, *(one.name for one in lower))
        for one in started:
            one.terminate()
            one.wait(30)
    return Round(
        "Penstock, penstock pool acquire",
        (told.first_ns - submitted_ns) / 1e6 if told else None,
        "" if told else urgent.output.read_text().strip(),
        held / GIB,
        (latest_ns - submitted_ns) / 1e6,
    )
