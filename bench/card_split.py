"""Training over unlike cards: split by measured speed or evenly, a slow card, snapshots; as JSON.

Usage: build/torch/bin/python -m bench.card_split [ROUNDS [MODEL]] > bench/results/card_split.json

Needs root, for cgroups: the cards are CPU workers with quotas of a processor, 0.8 of one at most,
so that the machine is not the limit. MODEL, resnet18 or gpt, trains as in `card_training.py`. Arms
alternate, each in a process of its own; a figure is the median over rounds, with quartiles.

`gain`: samples a second with a split by measured speeds to those with an even one, for quotas as
3 : 1 and as 4 : 2 : 1 : 1; `ideal`: what the quotas allow. `answered_steps`: a card's quota is cut
to a third in mid-training; the steps until one takes less than 1.15 of the median of the last ten.
`kept`: samples a second with snapshots, which let lost cards come back, to those without.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.card_training import PERIOD_US, Group, step_of

from penstock.bench.interleaved import load_average, quartiles

if TYPE_CHECKING:
    from collections.abc import Callable

QUOTAS = {"3:1": (0.525, 0.175), "4:2:1:1": (0.4, 0.2, 0.1, 0.1)}  # of a processor
SAMPLES, SETTLE_S, STEPS_S = 64, 75.0, 40.0  # a step may take ten seconds
THROTTLED_STEPS = 45


def cards_of(arm: str, count: int) -> str:
    """The cards of an arm."""
    return ",".join(["cpu=1" if arm == "even" else "cpu"] * count)


def limited(quotas: tuple[float, ...]) -> list[Group]:
    """Gives the cards their quotas."""
    from penstock.card.device.start import session

    groups = []
    for number, (card, quota) in enumerate(zip(session().cards.cards, quotas, strict=True)):
        groups.append(Group(f"penstock-bench-{os.getpid()}-{number}", quota))
        groups[-1].add(card.pid)
    return groups


def speed(step: Callable[[], float]) -> dict[str, Any]:
    """Samples a second once the split has settled."""
    until_s = time.monotonic() + SETTLE_S
    while time.monotonic() < until_s:
        step()
    began_s, count = time.monotonic(), 0
    while time.monotonic() - began_s < STEPS_S or count < 3:
        loss = step()
        count += 1
    return {"samples_per_s": count * SAMPLES / (time.monotonic() - began_s), "loss": loss}


def throttled(
    step: Callable[[], float], groups: list[Group], quotas: tuple[float, ...]
) -> dict[str, Any]:
    """The times of steps after the first card's quota was cut to a third."""
    until_s = time.monotonic() + SETTLE_S
    while time.monotonic() < until_s:
        step()
    groups[0].set(int(quotas[0] / 3 * PERIOD_US))
    times_s = []
    for _ in range(THROTTLED_STEPS):
        began_s = time.monotonic()
        step()
        times_s.append(time.monotonic() - began_s)
    settled_s = statistics.median(times_s[-10:])
    answered = next(i for i, one in enumerate(times_s) if i and one < 1.15 * settled_s)
    return {"times_s": times_s, "settled_s": settled_s, "answered_steps": answered}


def child(arm: str, name: str, model: str) -> None:
    """Measures one arm in this process."""
    import torch

    from penstock.card.device.start import session

    torch.set_num_threads(1)
    step = step_of(model, "penstock", SAMPLES)
    step()  # the cards start
    quotas = QUOTAS[name]
    groups = limited(quotas)
    found = throttled(step, groups, quotas) if arm == "throttled" else speed(step)
    found["shares"] = [one / sum(session().speeds) for one in session().speeds]
    print(json.dumps(found), flush=True)
    session().cards.close()
    for one in groups:
        one.remove()


def run(arm: str, name: str, model: str) -> dict[str, Any]:
    """Runs an arm in a process of its own."""
    recovers = "on" if arm == "kept" else "off"
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", __file__, "--child", arm, name, model],
            env={**os.environ, "PENSTOCK_CARD": cards_of(arm, len(QUOTAS[name])),
                 "XDG_RUNTIME_DIR": folder, "PENSTOCK_CARD_RECOVERY": recovers,
                 "PYTHONPATH": os.pathsep.join(
                     [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])},
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main(rounds: int, model: str) -> None:
    """Prints the figures."""
    result: dict[str, Any] = {
        "model": model, "quotas": QUOTAS, "samples": SAMPLES, "rounds": rounds,
        "load_before": load_average(),
    }  # fmt: skip
    for name, quotas in QUOTAS.items():
        arms = ["weighted", "even", *(["kept", "throttled"] if name == "3:1" else [])]
        found = [{arm: run(arm, name, model) for arm in arms} for _ in range(rounds)]
        rates = [{arm: one[arm].get("samples_per_s", 0.0) for arm in arms} for one in found]
        result[name] = {
            "ideal": sum(quotas) / len(quotas) / min(quotas),
            "gain": quartiles([one["weighted"] / one["even"] for one in rates]),
            "samples_per_s": {arm: quartiles([one[arm] for one in rates])
                              for arm in ("weighted", "even")},
            "shares": found[-1]["weighted"]["shares"],
            "losses": {arm: found[-1][arm].get("loss") for arm in arms},
        }  # fmt: skip
        if name == "3:1":
            result[name] |= {
                "kept": quartiles([one["kept"] / one["weighted"] for one in rates]),
                "answered_steps": quartiles([one["throttled"]["answered_steps"] for one in found]),
                "throttled_times_s": found[-1]["throttled"]["times_s"],
            }
    result["load_after"] = load_average()
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], sys.argv[4])
    else:
        words = [*sys.argv[1:], *("3", "resnet18")[len(sys.argv) - 1 :]]
        main(int(words[0]), words[1])
