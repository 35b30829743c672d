"""The design's assumptions about drivers and devices, each checked on this one."""

from __future__ import annotations

import json
import statistics
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.gpu import children
from tests.gpu.budget import Check
from tests.gpu.busy import overlap_ns, slices_ns
from tests.gpu.children import FailedError
from tests.gpu.load import Load, Work
from tests.gpu.rows import NotHereError, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.gpu.setting import Setting

    Judge = Callable[[dict[str, Any]], bool]

START_US = 3.2  # GATE_START_NS: from entering a launch call to the kernel's begin
IDLE_EVENT_US = 20
UNSUPPORTED, INVALIDATED = 900, 901  # CUDA_ERROR_STREAM_CAPTURE_...

MODELLED = {  # what the simulated device does in another way than a real one
    "slices": "takes slices from its profile, and traces none",
    "early_launch": "begins a programmatic dependent launch 2 us early, whatever the kernels do",
}

# name, probe, what is to hold in words, whether it does
PROBES: list[tuple[str, str, str, Judge]] = [
    ("a page of a file takes stream writes", "registered_page",
     "another mapping sees them within 50 us", lambda told: told["seen_us"] <= 50),
    ("64-bit stream memory operations", "attributes", "the attribute says so",
     lambda told: told["stream_words_64"] == 1),
    ("an event on an idle stream", "idle_event", f"is passed within {IDLE_EVENT_US} us",
     lambda told: told["passed_us"] <= IDLE_EVENT_US),
    ("two events on a busy stream", "bracket", "are apart by what was launched between them",
     lambda told: abs(told["apart_us"] - told["launched_us"]) <= 0.02 * told["launched_us"]),
    ("a launch on an idle stream", "start_delay", f"begins after about {START_US} us: done later",
     lambda told: told["least_us"] >= START_US),
    ("an event query beside another thread's capture", "capture_query",
     "kills it, and in relaxed mode does not",
     lambda told: (told["plain_query"], told["plain_end"]) == (UNSUPPORTED, INVALIDATED)
     and told["relaxed_query"] == 0 and told["relaxed_end"] == 0),
    ("events for other processes", "ipc_events", "carry no timing",
     lambda told: bool(told["timed_handle"]) and bool(told["timed_interprocess"])
     and told["plain_handle"] == 0),
    ("a CUkernel in place of a CUfunction", "kernel_as_function", "can be launched",
     lambda told: told["works"]),
    ("per-thread default stream", "per_thread_stream", "is a stream of its own",
     lambda told: told["own"] == 600 and told["beside"] == 0),
    ("programmatic dependent launch", "early_launch", "overlaps; an event between prevents it",
     lambda told: told["early_us"] < 0.8 * told["plain_us"] < told["marked_us"] * 1.1),
    ("elapsed time between events is a float", "elapsed_step", "steps of at most 1.1 us after 2 s",
     lambda told: told["least_step_ns"] <= 1100),
]  # fmt: skip


def checks() -> list[Check]:
    """Contexts first: time slices of tenants depend on them."""
    found = [
        Check(
            "assumptions",
            "contexts take turns on the device",
            _slices,
            6,
            60,
            partial(_not_modelled, "slices"),
        ),
        Check("assumptions", "penstock doctor", _doctor, 5, 60),
    ]
    found += [
        Check(
            "assumptions",
            name,
            partial(_probe, probe, aim, judge),
            3,
            30,
            partial(_not_modelled, probe),
        )
        for name, probe, aim, judge in PROBES
    ]
    return [*found, Check("assumptions", "what this driver offers", _offers, 2, 30)]


def _not_modelled(probe: str, setting: Setting) -> None:
    """Raises `NotHereError` for what the simulated device does in another way than a real one."""
    if setting.arena.simulated and probe in MODELLED:
        raise NotHereError(f"the simulated device {MODELLED[probe]}")


def _asked(setting: Setting, probe: str) -> dict[str, Any]:
    """A probe's answer. Raises `NotHereError`, `FailedError`, `HungError`."""
    told: dict[str, Any] = setting.native(setting.own_script("probes.py", probe))
    return told


def _probe(probe: str, aim: str, judge: Judge, setting: Setting) -> Outcome:
    told = _asked(setting, probe)
    words = ", ".join(f"{name} {value:.4g}" for name, value in told.items())
    return Outcome(words, figures=told, aim=aim, reached=bool(judge(told)))


def _offers(setting: Setting) -> Outcome:
    told = _asked(setting, "offers")
    words = ", ".join(f"{name} {'yes' if there else 'no'}" for name, there in told.items())
    return Outcome(words, details=told)


def _doctor(setting: Setting) -> Outcome:
    """Names that the installed driver has and the shim lacks would keep programs from starting."""
    argv = [sys.executable, "-m", "penstock", "doctor", "-o", "json"]
    done = children.run(setting.arena.native(argv), setting.left_s())
    try:
        findings = json.loads(done.out)["findings"]
    except (ValueError, KeyError) as error:
        raise FailedError(f"ended with {done.code}: {children.tail(done.err)}") from error
    wrong = [
        f"{one['status']}: {one['check']}: {one['seen']}"
        for one in findings
        if one["status"] != "ok"
    ]
    return Outcome(
        "; ".join([*wrong, f"{len(findings)} checks"]),
        aim="finds nothing wrong",
        reached=done.code == 0,
    )


def _slices(setting: Setting) -> Outcome:
    """Two processes without shim, backlogged with kernels far longer than a time slice."""
    work = Work(kernel_us=20000, jitter_percent=0, sync_every=4)
    tenants = {name: (work, partial(setting.arena.native, tag=name)) for name in ("one", "other")}
    with Load(setting, tenants) as load:
        time.sleep(1.5)
        segments = load.segments()
    both = overlap_ns(segments["one"], segments["other"])
    turns, gaps = slices_ns(segments["one"], segments["other"])
    if len(turns) < 5:
        raise FailedError(f"only {len(turns)} turns were seen")
    turn_us = statistics.median(turns) / 1e3
    gap_us = statistics.median(gaps) / 1e3
    return Outcome(
        f"turns of {turn_us:.0f} us, {gap_us:.1f} us between them ({len(turns)} turns); on the "
        f"device at once: {both / 1e3:.0f} us",
        figures={"profile.time_slice_us": turn_us, "profile.context_switch_us": gap_us,
                 "overlap_us": both / 1e3},
        aim="never at once", reached=both == 0,
    )  # fmt: skip
