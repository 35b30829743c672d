"""Behaviour that no document describes and the simulated GPU guesses, each checked on the driver.

A row names an assumption of the design and says whether the driver agrees. Where the simulated
device behaves in another way, its row is `not here` and says in which way.
"""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.gpu.budget import Check
from tests.gpu.children import FailedError
from tests.gpu.rows import NotHereError, Outcome

if TYPE_CHECKING:
    from tests.gpu.setting import Setting

    Told = dict[str, Any]

MODULE_SLACK_KIB = 512  # a copy: what the driver's own granule makes of eight of them
FAT = 1.25  # that an image may take beside what its one fitting architecture does
DRIFT_PPM, SPREAD_US = 50.0, 5.0
HELD_BACK_US = 1000.0
IDLE_EVENT_US = 20.0
COMPATIBILITY = ("usr/local/cuda*/compat*", "opt/cuda*/compat*")  # below the root
GRAPH_NODES = 10
ONE_QUEUE = "the simulated device gives each stream a queue of its own"


def checks() -> list[Check]:
    """Those first by which most programs would be charged wrongly."""
    rows = [
        ("modules: architectures, first use", _modules, 8),
        ("local memory of kernels", _local_memory, 4),
        ("an exported descriptor", _exported, 3),
        ("memory that only an exported descriptor holds", partial(_held, "held_by_export"), 3),
        ("memory that only a dma-buf holds", partial(_held, "held_by_dma_buf"), 3),
        ("memory of a graph that allocates time and again", _graph_memory, 3),
        ("the device's clock beside the host's", _clock, 8),
        ("a marker beside another stream", partial(_marker, "8"), 4),
        ("the same with one connection", partial(_marker, "1"), 4),
        ("streams that share a queue", _aliases, 4),
        ("the driver that a program gets", _which, 4),
        ("MPS", _mps, 3),
    ]
    return [Check("assumptions", name, run, needs_s, 60) for name, run, needs_s in rows]


def _asked(setting: Setting, file: str, *words: object, **variables: str) -> Told:
    """The output of a program of this section.

    Raises `NotHereError`, `FailedError`, `HungError`.
    """
    told: Told = setting.native(setting.own_script(file, *words), **variables)
    return told


def _figures(told: Told) -> dict[str, float]:
    return {name: float(value) for name, value in told.items() if isinstance(value, (int, float))}


def _judged(setting: Setting, outcome: Outcome, lacks: str) -> Outcome:
    """The outcome; but where the simulated device does not agree, it is that device's doing.

    Raises:
        NotHereError: then.
    """
    if setting.arena.simulated and not outcome.reached:
        raise NotHereError(f"{lacks}: {outcome.measured}")
    return outcome


def _modules(setting: Setting) -> Outcome:
    """An image alone, in a fat binary, and there with other architectures' images beside it."""
    told = {
        mode: _asked(setting, "taken.py", "modules", CUDA_MODULE_LOADING=mode.upper())
        for mode in ("lazy", "eager")
    }
    reached: bool | None = True
    words, figures = [], {}
    for mode, one in told.items():
        figures |= {f"{mode}_{name}": value for name, value in _figures(one).items()}
        said = []
        for image in ("alone", "fat", "fat_of_more"):
            if code := one.get(f"{image}_refused_code"):
                said.append(f"{image} refused with {code:g}")
                reached = None
                continue
            load, whole = one[f"{image}_load_kib"], _whole_kib(one, image)
            nvml = one[f"{image}_nvml_kib"]
            said.append(f"{image} {load:.0f} KiB at the load, {whole:.0f} once all was launched "
                        f"(NVML {nvml:.0f})")  # fmt: skip
        words.append(f"{mode}: {', '.join(said)}")
    if reached:
        most = {m: FAT * _whole_kib(one, "fat") + MODULE_SLACK_KIB for m, one in told.items()}
        single = all(_whole_kib(one, "fat_of_more") <= most[m] for m, one in told.items())
        late = told["lazy"]["fat_load_kib"] < told["eager"]["fat_load_kib"] / 2
        reached = single and late
    first = told["lazy"]
    words.append(f"{first['images']:.0f} images of {first['image_kib']:.0f} KiB")
    return _judged(
        setting,
        Outcome("; ".join(words), figures=figures, reached=reached,
                aim="a fat binary takes what its one fitting image does; lazily, at first use"),
        "the simulated device keeps every image from the load on",
    )  # fmt: skip


def _whole_kib(told: Told, image: str) -> float:
    stages = ("load", "functions", "first_launch", "other_launches")
    return sum(float(told[f"{image}_{stage}_kib"]) for stage in stages)


def _local_memory(setting: Setting) -> Outcome:
    told = _asked(setting, "taken.py", "local_memory")
    resident = told["sms"] * told["threads_per_sm"]
    words, reached, sum_mib = [], True, 0.0
    for kib in (0, 1, 8, 64):
        if f"at_launch_of_{kib}_kib_mib" not in told:
            break
        load, launch = told[f"at_load_of_{kib}_kib_mib"], told[f"at_launch_of_{kib}_kib_mib"]
        back = 0 - told.get(f"at_unload_of_{kib}_kib_mib", 0)
        sum_mib += load + launch
        due_mib = (told[f"frame_{kib}_kib_bytes"] or kib << 10) * resident / (1 << 20)
        words.append(
            f"{kib} KiB a thread: {load:.0f} MiB at the load, {launch:.0f} at the launch, back at "
            f"the unload {back:.0f} (bytes x SMs x resident threads: {due_mib:.0f})"
        )
        if kib >= 8:  # less may be there from the beginning
            reached &= 0.8 * due_mib <= sum_mib <= 1.25 * due_mib and back < 0.1 * due_mib
        sum_mib -= back
    if code := told.get("refused_code"):
        words.append(f"then refused with {code}")
    return _judged(
        setting,
        Outcome("; ".join(words), figures=_figures(told), reached=reached,
                aim="bytes a thread x SMs x resident threads, and stays"),
        "the simulated device takes nothing for kernels' frames",
    )  # fmt: skip


def _exported(setting: Setting) -> Outcome:
    """A descriptor of device memory: its kind, and by what another process knows it again."""
    told = _asked(setting, "descriptors.py", "exported")
    kind = f"character device {told['major']}:{told['minor']}" if told["char_device"] else "a file"
    inodes = "one inode" if told["same_inode_for_both"] else "an inode each"
    owner = "yes" if told["owner_seen"] else "no"
    same, other, child = (_compared(told[f"kcmp_{of}"]) for of in ("same", "other", "from_child"))
    words = (
        f"{told['path']}: {kind}; two allocations have {inodes}; another process sees its owner "
        f"(F_GETOWN): {owner}; kcmp, asked by the parent: {same}, for another allocation {other}; "
        f"by the child: {child}"
    )
    told_apart = told["kcmp_same"] == 0 and told["kcmp_other"] > 0
    reached = told["char_device"] and (told["owner_seen"] or told_apart)
    return _judged(
        setting,
        Outcome(words, details=told, reached=bool(reached),
                aim="a character device; its owner or kcmp tells it again in another process"),
        "the simulated device exports a plain file",
    )  # fmt: skip


def _compared(result: int) -> str:
    if result < 0:
        return errno.errorcode.get(-result, str(result))
    return "another" if result else "the same"


def _held(probe: str, setting: Setting) -> Outcome:
    told = _asked(setting, "descriptors.py", probe)
    taken, first, second = told.values()
    if taken <= 0:
        raise FailedError(f"free memory did not fall: {told}")
    words = ", ".join(f"{name} {value:.0f}" for name, value in told.items())
    return _judged(
        setting,
        Outcome(words, figures=_figures(told), reached=first < 0.1 * taken < 0.9 * taken <= second,
                aim="stays on the device until the descriptor is closed"),
        "a descriptor alone holds nothing on the simulated device",
    )  # fmt: skip


def _graph_memory(setting: Setting) -> Outcome:
    count = setting.memory_bytes(setting.few(1 << 30, 64 << 20))
    count = min(count, max(2 << 20, setting.device.free_bytes // (2 * GRAPH_NODES) & -(2 << 20)))
    told = _asked(setting, "taken.py", "graph_memory", count, GRAPH_NODES)
    stages = ("instantiated", "uploaded", "launched", "destroyed", "trimmed")
    seen = [f"{told[key]:.0f} {stage}" for stage in stages
            if (key := f"{stage}_reserved_mib") in told]  # fmt: skip
    return _judged(
        setting,
        Outcome(
            f"{GRAPH_NODES} x {told['node_mib']:.0f} MiB, each freed before the next; reserved "
            f"MiB: {', '.join(seen)}",
            figures=_figures(told),
            aim="takes one of them, when the graph is launched or uploaded",
            reached=told["instantiated_reserved_mib"] == 0
            and told["launched_reserved_mib"] <= 1.5 * told["node_mib"],
        ),
        "the simulated device reuses no memory inside a graph",
    )


def _clock(setting: Setting) -> Outcome:
    told = _asked(setting, "queues.py", "clock_drift", setting.few(50, 15) / 10)
    drift, spread_us = told["drift_ppm"], told["spread_ns"] / 1e3
    return Outcome(
        f"drift {drift:+.2f} ppm over {told['seconds']:.1f} s ({abs(drift) * 3.6:.1f} ms an hour), "
        f"spread {spread_us:.2f} us; a reading takes {told['reading_ns'] / 1e3:.1f} us",
        figures=_figures(told),
        aim=f"drift <= {DRIFT_PPM:g} ppm, spread <= {SPREAD_US:g} us",
        reached=abs(drift) <= DRIFT_PPM and spread_us <= SPREAD_US,
    )


def _marker(connections: str, setting: Setting) -> Outcome:
    told = _asked(setting, "queues.py", "marker", CUDA_DEVICE_MAX_CONNECTIONS=connections)
    plain, marked = told["plain_us"], told["marked_us"]
    outcome = Outcome(
        f"CUDA_DEVICE_MAX_CONNECTIONS={connections}: a kernel of {told['kernel_us']:.0f} us beside "
        f"one of {told['long_us'] / 1000:.0f} ms on another stream is done after {plain:.0f} us, "
        f"with an event behind the long one after {marked:.0f} us; an event on an idle stream "
        f"beside a full queue is passed after {told['idle_event_us']:.1f} us (worst "
        f"{told['idle_event_worst_us']:.0f})",
        figures=_figures(told),
        aim=f"holds nobody back; an idle stream's event within {IDLE_EVENT_US:g} us",
        reached=marked - plain <= HELD_BACK_US and told["idle_event_us"] <= IDLE_EVENT_US,
    )
    if setting.arena.simulated and connections == "1" and marked - plain <= HELD_BACK_US:
        raise NotHereError(f"{ONE_QUEUE}: {outcome.measured}")
    return outcome


def _aliases(setting: Setting) -> Outcome:
    told = _asked(setting, "queues.py", "aliases", CUDA_DEVICE_MAX_CONNECTIONS="8")
    first = told["first_held_back"]
    if setting.arena.simulated and not first:
        raise NotHereError(f"{ONE_QUEUE}: none of {told['streams']} waited")
    seen = f"the {first:.0f}th waits for the first" if first else "none waits"
    return Outcome(
        f"CUDA_DEVICE_MAX_CONNECTIONS=8: of {told['streams']:.0f} streams {seen}; an event on an "
        f"idle one is passed after {told['worst_us']:.0f} us at worst",
        figures=_figures(told),
        aim="an idle stream waits for no other",
        reached=not first,
    )


def _which(setting: Setting) -> Outcome:
    """The driver without the shim and under it; where a compatibility folder lies, its too."""
    argv = setting.own_script("which.py")
    pairs = {"as it is": (setting.native(argv), setting.shimmed(argv))}
    folders = sorted(path for pattern in COMPATIBILITY for path in Path("/").glob(pattern))
    for folder in folders if not setting.arena.simulated else []:
        if list(folder.glob("libcuda.so.1")):
            variable = {"LD_LIBRARY_PATH": str(folder)}
            pairs[str(folder)] = (setting.native(argv, **variable),
                                  setting.shimmed(argv, **variable))  # fmt: skip
    words = [
        f"{name}: CUDA {_version(native)} from {', '.join(native['files'])}, under the shim "
        f"{_version(shimmed)} from {', '.join(shimmed['files'])}"
        for name, (native, shimmed) in pairs.items()
    ]
    if len(pairs) == 1:
        words.append("no compatibility folder was tried")
    return Outcome(
        "; ".join(words),
        details={name: {"native": n, "shimmed": s} for name, (n, s) in pairs.items()},
        aim="the same version under the shim",
        reached=all(n["version"] == s["version"] for n, s in pairs.values()),
    )


def _version(told: Told) -> str:
    return f"{told['version'] // 1000}.{told['version'] % 1000 // 10}"


def _mps(setting: Setting) -> Outcome:
    told = _asked(setting, "which.py")
    attribute = told["mps_attribute"]
    says = {0: "the driver says no", 1: "the driver says yes", None: "the driver is not asked: it "
            f"answers {told['mps_attribute_code']}"}[attribute]  # fmt: skip
    running = ", ".join(told["mps_daemons"]) or "no daemon runs"
    pipe = "there is a control pipe" if told["mps_control"] else "there is no control pipe"
    return Outcome(
        f"{says} (CU_DEVICE_ATTRIBUTE_MPS_ENABLED); {running}; {pipe}",
        details=told,
        aim="off, and the driver says so: under MPS contexts take no turns",
        reached=attribute == 0 and not told["mps_daemons"],
    )
