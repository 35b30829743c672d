"""Observation of tenants while an agent is killed: their own logs, and the device's record."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from tests.agent.conftest import wait_until
from tests.agent.support.programs import environment_for
from tests.support import headers

from penstock.bench.stage import Sample, windows

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.agent.conftest import Node

    from penstock_shim.simulator import Machine

HERE = Path(__file__).parents[1]
NATIVE = HERE.parents[1] / "shim" / "native"
SAMPLE_S = 0.02


def build_witness(folder: Path) -> Path:
    """Compiles the program that keeps a log of its own calls."""
    output = folder / "witness"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}", f"-I{headers.cuda_include()}"]
    source = HERE / "programs" / "witness.c"
    subprocess.run(["gcc", *flags, source, "-o", output, "-ldl", "-pthread"], check=True)
    return output


def assert_settles(share: Callable[[float], float], percent: float, points: float) -> None:
    """`share`, sampled over some seconds, comes within `points` in twenty seconds and stays there.

    One close sample may be luck: the four seconds after it decide.
    """
    wait_until(lambda: abs(share(1.0) - percent) < points)
    got = share(4.0)
    assert abs(got - percent) < points, f"{got:.1f} where {percent:g} was to stay"


class Witness:
    """A tenant's program that launches without a pause and logs each of its calls."""

    def __init__(self, node: Node, granted, program: Path, kernel_us: int = 200) -> None:
        self.process = subprocess.Popen(
            [program, str(kernel_us)],
            env=environment_for(granted),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        node.programs.append(self.process)

    def says(self) -> dict:
        """Calls, answers and latencies since the last call."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self) -> int:
        """Lets it end by itself, after all its launches; returns the exit code."""
        self.process.stdin.close()
        self.process.stdin = None  # or `communicate` would write to it
        return self.process.wait(30)


class Sampler:
    """The device's own record of each tenant during a `with` block."""

    def __init__(self, node: Node, machine: Machine | None = None) -> None:
        """`machine`: an open simulated machine; by default it is opened here, for writing."""
        self._machine = machine or node.machine()
        self.samples: list[Sample] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            records = self._machine.record(0)
            busy_ns: dict[str, int] = {}
            for record in records:
                busy_ns[record.tag] = busy_ns.get(record.tag, 0) + record.busy_ns
            self.samples.append(Sample(records[0].at_ns, busy_ns))

    def percents(self, name: str, window_s: float) -> list[float]:
        """The tenant's share of the device over every stretch of `window_s`."""
        return [window.percent for window in windows(self.samples, name, window_s)]
