"""Training on a virtual card: its cards together to their sum, one card to native; as JSON.

Usage: build/torch/bin/python bench/card_training.py [ROUNDS [MODEL]] > bench/results/NAME.json

Needs root, for cgroups: the cards are CPU workers whose quotas of a processor are as 1 : 2 : 4 and
0.7 of one processor together, so that the machine is not the limit. Rounds alternate between all
arms, each in a process of its own; a figure is the median over rounds, with quartiles.

`native`: the same program on device cpu with one thread and the quota and batch of the largest
card. `card_N`: through the device, on that card alone, with as many samples as are its share by
quota. `together`: on all three with all samples. The first steps do not count: the shares are
adapted in them, and gradients of a new GPT are so small (denormal) that a CPU takes twice as long.
`ratio_together`: its samples a second to the sum of the cards'. `ratio_native`: the
largest card's to native. `cpu_s`: processor time of each card's worker for a step. `add_us`: the
front-end's time for an addition of small tensors on one card with no quota; `add_cpu_us`: the
processor time of its thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.bench.interleaved import load_average, quartiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PERIOD_US = 10_000  # the kernel gives no less than 1 ms of it
QUOTAS = (0.1, 0.2, 0.4)  # of a processor
WARM, STEPS_S = 10, 25.0  # steps before, and seconds of steps that are measured
SAMPLES = (16, 32, 64)  # of the cards
MODELS = ("resnet18", "gpt")


class Group:
    """A cgroup whose processes have a quota of a processor; version 1 or 2."""

    def __init__(self, name: str, quota: float) -> None:
        root = Path("/sys/fs/cgroup")
        is_2 = (root / "cgroup.controllers").exists()
        self.folder = (root if is_2 else root / "cpu") / name
        self.folder.mkdir()
        self._is_2 = is_2
        self.set(int(quota * PERIOD_US))

    def set(self, quota_us: int) -> None:
        """Gives it so many microseconds of each period."""
        if self._is_2:
            (self.folder / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        else:
            (self.folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.folder / "cpu.cfs_quota_us").write_text(str(quota_us))

    def add(self, pid: int) -> None:
        """Moves a process with all its threads here."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """Removes the group; its processes have ended."""
        until_s = time.monotonic() + 5
        while self.folder.exists() and time.monotonic() < until_s:
            with contextlib.suppress(OSError):
                self.folder.rmdir()
            time.sleep(0.05)


def step_of(model_name: str, device: str, samples: int) -> Callable[[], float]:
    """One training step; returns the loss."""
    import torch
    from tests.card.support import models
    from torch.nn import functional

    torch.manual_seed(0)
    if model_name == "resnet18":
        model = models.resnet18().to(device)
        given = torch.randn(samples, 3, 112, 112).to(device)
        target = (torch.arange(samples) % 10).to(device)
        loss_of = functional.cross_entropy
    else:
        model = models.Gpt(1024, 128, 64, 4).to(device)
        words = torch.randint(0, 1024, (samples, 64))
        given, target = words.to(device), words.roll(1, 1).to(device)
        loss_of = models.words_loss
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> float:
        loss = loss_of(model(given), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def measure(
    model_name: str, device: str, samples: int, limit: Callable[[], list[int]]
) -> dict[str, Any]:
    """Samples a second after `limit`, which returns the processes that it has limited."""
    import torch

    torch.set_num_threads(1)
    step = step_of(model_name, device, samples)
    step()  # the cards start
    limited = limit()
    for _ in range(WARM):
        step()
    began, own, count = time.monotonic(), time.process_time(), 0
    cpu_s = [processor_time_s(pid) for pid in limited]
    while time.monotonic() - began < STEPS_S or count < 2:
        loss = step()
        count += 1
    took = time.monotonic() - began
    return {
        "samples_per_s": count * samples / took, "steps": count, "loss": loss,
        "program_cpu": (time.process_time() - own) / took,
        "cpu_s": [(processor_time_s(pid) - before) / count
                  for pid, before in zip(limited, cpu_s, strict=True)],
    }  # fmt: skip


def processor_time_s(pid: int) -> float:
    """What all threads of a process have had of processors."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(one.read_text().split()[0]) for one in tasks) / 1e9


def child(arm: str, model_name: str) -> None:
    """Measures one arm in this process."""
    groups: list[Group] = []

    def limit() -> list[int]:
        pids = []
        for pid, quota in limited():
            groups.append(Group(f"penstock-bench-{os.getpid()}-{len(groups)}", quota))
            groups[-1].add(pid)
            pids.append(pid)
        return pids

    def limited() -> Iterator[tuple[int, float]]:
        if arm == "native":
            yield os.getpid(), QUOTAS[-1]
            return
        from penstock.card.device.start import session

        quotas = QUOTAS if arm == "together" else [QUOTAS[int(arm[-1])]]
        yield from zip((one.pid for one in session().cards.cards), quotas, strict=True)

    device = "cpu" if arm == "native" else "penstock"
    samples = SAMPLES[-1]
    if arm == "together":
        samples = sum(SAMPLES)
    elif arm != "native":
        samples = SAMPLES[int(arm[-1])]
    print(json.dumps(measure(model_name, device, samples, limit)), flush=True)
    if arm == "native":
        Path(groups[0].folder.parent, "cgroup.procs").write_text(str(os.getpid()))
    else:
        from penstock.card.device.start import session

        session().cards.close()
    for one in groups:
        one.remove()


def front_end() -> None:
    """Measures what the program needs for an addition, in microseconds."""
    import torch

    one = torch.ones(8, device="penstock")
    times, own = [], []
    for _ in range(60):
        torch.penstock.synchronize()
        began, own_s = time.perf_counter(), time.thread_time()
        for _ in range(300):
            one + one
        own.append((time.thread_time() - own_s) / 300 * 1e6)
        times.append((time.perf_counter() - began) / 300 * 1e6)
    print(json.dumps({"add_us": times[10:], "add_cpu_us": own[10:]}), flush=True)


def run(arm: str, model_name: str = "") -> dict[str, Any]:
    """Runs an arm in a process of its own."""
    cards = ",".join(["cpu"] * len(QUOTAS)) if arm == "together" else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, __file__, "--child", arm, model_name],
            env={**os.environ, "PENSTOCK_CARD": cards, "XDG_RUNTIME_DIR": folder,
                 "PYTHONPATH": str(Path(__file__).parents[1])},
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main(rounds: int, models: Sequence[str] = MODELS) -> None:
    """Prints the figures."""
    arms = ["native", *(f"card_{number}" for number in range(len(QUOTAS))), "together"]
    result: dict[str, Any] = {
        "quotas": QUOTAS, "period_us": PERIOD_US, "samples": SAMPLES, "rounds": rounds,
        "load_before": load_average(),
        "front_end": {name: quartiles(times) for name, times in run("front_end").items()},
    }  # fmt: skip
    for model_name in models:
        found = [{arm: run(arm, model_name) for arm in arms} for _ in range(rounds)]
        speeds = [{arm: one[arm]["samples_per_s"] for arm in arms} for one in found]
        together = [one["together"] / sum(one[f"card_{n}"] for n in range(3)) for one in speeds]
        native = [one[f"card_{len(QUOTAS) - 1}"] / one["native"] for one in speeds]
        result[model_name] = {
            "samples_per_s": {arm: quartiles([one[arm] for one in speeds]) for arm in arms},
            "ratio_together": quartiles(together),
            "ratio_native": quartiles(native),
            "program_cpu": quartiles([one["together"]["program_cpu"] for one in found]),
            "cpu_s": {arm: found[-1][arm]["cpu_s"] for arm in arms},
        }
    result["load_after"] = load_average()
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        if sys.argv[2] == "front_end":
            front_end()
        else:
            child(sys.argv[2], sys.argv[3])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, sys.argv[2:] or MODELS)
