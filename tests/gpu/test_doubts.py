"""The section of doubts on the simulated GPU, and the verdicts of its rows."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from tests.gpu.arena import Arena
from tests.gpu.budget import Slot
from tests.gpu.facts import Pythons
from tests.gpu.preflight import Device
from tests.gpu.rows import NotHereError
from tests.gpu.run import measure
from tests.gpu.sections import doubts
from tests.gpu.setting import Setting

DEVICE = Device(8 << 30, 8 << 30, 0)
CHECKS = {check.name: check for check in doubts.checks()}


@pytest.fixture(scope="module")
def arena(tmp_path_factory):
    with Arena(tmp_path_factory.mktemp("arena"), "h200") as arena:
        yield arena


@pytest.mark.parametrize("name", CHECKS)
def test_each_doubt_is_asked_of_the_simulated_gpu_and_none_is_a_fault_of_the_check(arena, name):
    setting = Setting(arena, Pythons.__new__(Pythons), DEVICE, small=True)
    row = measure(Slot(CHECKS[name], time.monotonic() + 60, is_short=False), setting)
    assert row.simulated
    assert row.section == "assumptions"
    assert row.status in ("measured", "not here"), row.measured
    if row.status == "measured":
        assert row.aim
    else:
        assert "simulated device" in row.measured or "attribute" in row.measured


def asked(name, *told, simulated=False):
    """The outcome of a row whose programs say `told`, one after the other."""
    said = list(told)

    def say(*_, **__):
        return said.pop(0) if len(said) > 1 else said[0]

    setting = Setting.__new__(Setting)
    setting.__dict__ |= {
        "arena": SimpleNamespace(simulated=simulated), "device": DEVICE, "small": False,
        "native": say, "shimmed": say,
    }  # fmt: skip
    return CHECKS[name].run(setting)


def loaded(images, at_load_kib, later_kib, code=0):
    one = {"load": at_load_kib, "functions": 0, "first_launch": later_kib, "other_launches": 0,
           "nvml": at_load_kib + later_kib}  # fmt: skip
    told = {f"{image}_{key}_kib": value for image in ("alone", "fat") for key, value in one.items()}
    if code:
        told["fat_of_more_refused_code"] = code
    else:
        told |= {f"fat_of_more_{key}_kib": images * value for key, value in one.items()}
    return {**told, "images": 5, "image_kib": 2048}


def frames(factor, back_mib=0.0):
    """On 100 SMs with 2048 threads each; a launch takes what the frame needs beyond the last."""
    told = {"sms": 100, "threads_per_sm": 2048}
    before = 0.0
    for kib in (0, 1, 8, 64):
        due = factor * kib * 1024 * 100 * 2048 / (1 << 20)
        told |= {f"at_load_of_{kib}_kib_mib": 0, f"at_launch_of_{kib}_kib_mib": due - before,
                 f"frame_{kib}_kib_bytes": kib << 10,
                 f"at_unload_of_{kib}_kib_mib": -back_mib}  # fmt: skip
        before = due - back_mib
    return told


DESCRIPTOR = {
    "char_device": True, "major": 195, "minor": 255, "path": "/dev/nvidiactl",
    "same_inode_for_both": True, "same_device_there": True, "owner_seen": True,
    "kcmp_same": 0, "kcmp_other": 1, "kcmp_from_child": -1,
}  # fmt: skip
GRAPH = {
    "node_mib": 1024,
    "nodes": 10,
    "instantiated_reserved_mib": 0,
    "launched_reserved_mib": 1024,
}
CLOCK = {"drift_ppm": 12.0, "spread_ns": 900.0, "reading_ns": 9000.0, "seconds": 5.0}
MARKER = {
    "kernel_us": 50, "long_us": 10000, "plain_us": 70, "marked_us": 72, "idle_event_us": 9,
    "idle_event_worst_us": 30,
}  # fmt: skip
MPS = {"mps_attribute": 0, "mps_attribute_code": 0, "mps_control": False, "mps_daemons": []}
HELD = "memory that only a dma-buf holds"


@pytest.mark.parametrize(
    ("name", "told", "agrees"),
    [
        ("modules: architectures, first use", [loaded(1, 0, 2048), loaded(1, 2048, 0)], True),
        ("modules: architectures, first use", [loaded(5, 0, 2048), loaded(5, 2048, 0)], False),
        ("modules: architectures, first use", [loaded(1, 2048, 0), loaded(1, 2048, 0)], False),
        ("modules: architectures, first use", [loaded(1, 0, 1, 200), loaded(1, 1, 0, 200)], None),
        ("local memory of kernels", [frames(1)], True),
        ("local memory of kernels", [frames(0.5)], False),
        ("local memory of kernels", [frames(1, back_mib=5000)], False),
        ("an exported descriptor", [DESCRIPTOR], True),
        ("an exported descriptor", [{**DESCRIPTOR, "owner_seen": False}], True),  # by kcmp then
        ("an exported descriptor", [{**DESCRIPTOR, "owner_seen": False, "kcmp_same": -1}], False),
        ("an exported descriptor", [{**DESCRIPTOR, "char_device": False}], False),
        (HELD, [{"taken_mib": 256, "at_free_mib": 0, "at_close_mib": 256}], True),
        (HELD, [{"taken_mib": 256, "at_free_mib": 256, "at_close_mib": 0}], False),
        ("memory of a graph that allocates time and again", [GRAPH], True),
        ("memory of a graph that allocates time and again",
         [{**GRAPH, "launched_reserved_mib": 10240}], False),
        ("the device's clock beside the host's", [CLOCK], True),
        ("the device's clock beside the host's", [{**CLOCK, "drift_ppm": -60.0}], False),
        ("a marker beside another stream", [MARKER], True),
        ("the same with one connection", [{**MARKER, "marked_us": 9900}], False),
        ("a marker beside another stream", [{**MARKER, "idle_event_us": 50}], False),
        ("streams that share a queue", [{"first_held_back": 0, "streams": 40, "worst_us": 9}],
         True),
        ("streams that share a queue", [{"first_held_back": 9, "streams": 9, "worst_us": 9999}],
         False),
        ("the driver that a program gets", [{"version": 13000, "files": ["a"]}], True),
        ("the driver that a program gets",
         [{"version": 13000, "files": ["a"]}, {"version": 12020, "files": ["b"]}], False),
        ("MPS", [MPS], True),
        ("MPS", [{**MPS, "mps_attribute": 1, "mps_daemons": ["nvidia-cuda-mps"]}], False),
        ("MPS", [{**MPS, "mps_attribute": None, "mps_attribute_code": 1}], False),
    ],
)  # fmt: skip
def test_a_row_says_whether_a_real_driver_agrees(monkeypatch, name, told, agrees):
    monkeypatch.setattr(doubts, "COMPATIBILITY", ())
    outcome = asked(name, *told)
    assert outcome.reached is agrees, outcome.measured
    assert outcome.aim
    assert not outcome.is_fault


def test_where_the_simulated_gpu_does_it_in_another_way_its_row_says_so_and_blames_nobody():
    with pytest.raises(NotHereError, match="reuses no memory"):
        asked("memory of a graph that allocates time and again",
              {**GRAPH, "launched_reserved_mib": 10240}, simulated=True)  # fmt: skip
    with pytest.raises(NotHereError, match="a queue of its own"):
        asked("the same with one connection", MARKER, simulated=True)
    # Once it is taught, the row is as that of a real one.
    taught = asked("the same with one connection", {**MARKER, "marked_us": 9900}, simulated=True)
    assert taught.reached is False


def test_the_drivers_of_compatibility_folders_are_asked_too(monkeypatch, tmp_path):
    folder = tmp_path / "cuda-13" / "compat"
    folder.mkdir(parents=True)
    (folder / "libcuda.so.1").touch()
    (tmp_path / "cuda-12" / "compat").mkdir(parents=True)  # holds no driver
    pattern = str(tmp_path.relative_to("/") / "cuda*" / "compat*")
    monkeypatch.setattr(doubts, "COMPATIBILITY", (pattern,))
    old, new = {"version": 12020, "files": ["host"]}, {"version": 13000, "files": ["compat"]}
    lost = asked("the driver that a program gets", old, old, new, old)
    assert lost.reached is False
    assert set(lost.details) == {"as it is", str(folder)}
    assert asked("the driver that a program gets", old, old, new, new).reached
