"""The cost of the shim: native, with an open gate, and gated, in turn in one run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.gpu import pairs
from tests.gpu.budget import Check
from tests.gpu.pairs import Spread
from tests.gpu.rows import Outcome
from tests.gpu.sections.compatibility import has_module, usable

if TYPE_CHECKING:
    from tests.gpu.setting import Setting

AIMS_NS = {  # added median, by call and arm
    ("launch", "idle"): 60,
    ("launch", "gated"): 150,
    ("allocate", "gated"): 300,
}
REFUSAL_NS = 300  # in all
START_US = 5000
MOST_PERCENT = 2.0  # of a training step or a token, at a quota that never binds


def checks() -> list[Check]:
    """Single calls first, then what people wait for."""
    return [
        Check("cost", "launch, allocate, free, refuse", _calls, 15, 60),
        Check("cost", "driver calls, without the shim", _driver_calls, 5, 60),
        Check("cost", "graphs of 16 short kernels, each waited for", _tokens, 10, 60),
        Check(
            "cost",
            "PyTorch, training steps",
            partial(_torch, "train"),
            25,
            120,
            has_module("torch"),
        ),
        Check(
            "cost",
            "PyTorch, decode-like inference",
            partial(_torch, "decode"),
            25,
            120,
            has_module("torch"),
        ),
        Check("cost", "first CUDA calls of a process", _start, 6, 60),
    ]


def _calls(setting: Setting) -> Outcome:
    argv = setting.workload("latency", setting.few(20000, 500))
    seen = pairs.interleaved(setting, argv, setting.few(5, 1))
    flat = {
        arm: [
            {f"{call}_{key}": value for call, told in result.items() for key, value in told.items()}
            for result in results
        ]
        for arm, results in seen.items()
    }
    words, figures, reached = [], {}, True
    for call in ("launch", "allocate", "free", "refuse"):
        native = Spread.of([one[f"{call}_median_ns"] for one in flat["native"]])
        figures[f"{call}_native_ns"] = native.median
        said = [f"{call} {native.median:.0f} ns"]
        for arm in ("idle", "gated"):
            more = pairs.added(flat, arm, f"{call}_median_ns")
            figures[f"{call}_{arm}_added_ns"] = more.median
            said.append(f"{arm} {more.median:+.0f} ({more.low:+.0f} to {more.high:+.0f})")
            aim = AIMS_NS.get((call, arm))
            reached &= aim is None or more.median <= aim
        words.append(", ".join(said))
    refusal = Spread.of([one["refuse_median_ns"] for one in flat["gated"]]).median
    figures["refusal_in_all_ns"] = refusal
    return Outcome(
        f"{'; '.join(words)}; a refusal in all {refusal:.0f} ns; {len(flat['native'])} rounds",
        figures=figures,
        aim="launch +60 ns, gated +150; allocate +300; refusal 300",
        reached=reached and refusal <= REFUSAL_NS,
    )


def _driver_calls(setting: Setting) -> Outcome:
    """Costs for the simulated GPU's profile: `python -m tests.gpu.calibrate`."""
    told = setting.native(setting.workload("costs", setting.few(2000, 200)))
    words = ", ".join(f"{name} {value:g}" for name, value in told.items())
    return Outcome(words, figures={f"profile.{name}": value for name, value in told.items()})


def _tokens(setting: Setting) -> Outcome:
    """Launches a second of a program that waits for each: a token's worth of short kernels."""
    argv = setting.workload(
        "launcher", "--kernel-us", 8, "--graph", 16, "--sync-every", 1,
        "--seconds", setting.few(15, 4) / 10,
    )  # fmt: skip
    seen = pairs.interleaved(setting, argv, setting.few(4, 1))
    for results in seen.values():
        for result in results:
            result["us"] = 1e6 * result["seconds"] / result["launches"]
    return _slower(seen, "us", "us a graph")


def _torch(mode: str, setting: Setting) -> Outcome:
    usable("torch", setting)
    argv = setting.script("torch", "torch_speed.py", mode)
    seen = pairs.interleaved(setting, argv, setting.few(3, 1))
    return _slower(seen, "us", "us a step" if mode == "train" else "us a token")


def _slower(seen: dict[str, list[dict[str, float]]], key: str, unit: str) -> Outcome:
    native = Spread.of([one[key] for one in seen["native"]])
    figures = {f"native_{key}": native.median}
    words = [f"native {native.words(unit)}"]
    reached = True
    for arm in ("idle", "gated"):
        more = pairs.added(seen, arm, key, relative=True)
        figures[f"{arm}_added_percent"] = more.median
        words.append(f"{arm} {more.median:+.2f} % ({more.low:+.2f} to {more.high:+.2f})")
        reached &= more.median <= MOST_PERCENT
    rounds = len(seen["native"])
    return Outcome(
        f"{'; '.join(words)}; {rounds} rounds", figures=figures,
        aim=f"<= {MOST_PERCENT:g} % slower", reached=reached,
    )  # fmt: skip


def _start(setting: Setting) -> Outcome:
    seen = pairs.interleaved(
        setting, setting.workload("start"), setting.few(5, 1), ("native", "gated")
    )
    for results in seen.values():
        for result in results:
            result["sum_ns"] = sum(result.values())
    more = pairs.added(seen, "gated", "sum_ns")
    native = Spread.of([one["sum_ns"] for one in seen["native"]])
    return Outcome(
        f"native {native.median / 1e3:.0f} us, added {more.median / 1e3:.0f} us "
        f"({more.low / 1e3:.0f} to {more.high / 1e3:.0f}); {len(seen['native'])} rounds",
        figures={"native_us": native.median / 1e3, "added_us": more.median / 1e3},
        aim=f"<= {START_US} us",
        reached=more.median / 1e3 <= START_US,
    )
