"""The rows of programs that differ, fail, hang or do not exist."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from tests.gpu import children
from tests.gpu.arena import Arena
from tests.gpu.budget import Check, Slot
from tests.gpu.children import Child, Command
from tests.gpu.facts import Pythons
from tests.gpu.preflight import Device
from tests.gpu.report import is_bad
from tests.gpu.rows import Outcome
from tests.gpu.run import measure
from tests.gpu.sections.compatibility import compare, usable
from tests.gpu.setting import Setting


@pytest.fixture(scope="module")
def arena(tmp_path_factory):
    with Arena(tmp_path_factory.mktemp("arena"), "h200") as arena:
        yield arena


@pytest.fixture
def row_of(arena):
    """The row of a check that does `run`."""

    def row(run, timeout_s=60.0, *, is_short=False):
        setting = Setting(arena, Pythons.__new__(Pythons), Device(8 << 30, 8 << 30, 0), small=True)
        setting.pythons._found = {"numba.cuda": (sys.executable, "?")}
        check = Check("cost", "a check", run, 1, timeout_s)
        return measure(Slot(check, time.monotonic() + timeout_s, is_short), setting)

    return row


def write_program(folder, text):
    path = folder / "program.py"
    path.write_text(text)
    return [sys.executable, str(path)]


def test_a_program_that_computes_something_else_under_the_shim_is_told(row_of, tmp_path):
    argv = write_program(
        tmp_path,
        "import json\n"
        "shimmed = 'libpenstock.so' in open('/proc/self/maps').read()\n"
        "print(json.dumps({'digest': 'other' if shimmed else 'right', 'value': 1}))\n",
    )
    row = row_of(lambda setting: compare(setting, argv))
    assert (row.status, row.reached, row.simulated) == ("differs", False, True)
    assert "right" in row.measured
    assert "other" in row.measured
    close = write_program(
        tmp_path,
        "import json\n"
        "shimmed = 'libpenstock.so' in open('/proc/self/maps').read()\n"
        "print(json.dumps({'digest': None, 'value': 100 + shimmed}))\n",
    )
    assert row_of(lambda setting: compare(setting, close, 0.02)).status == "measured"
    assert row_of(lambda setting: compare(setting, close, 0.001)).status == "differs"


def test_a_driver_call_that_never_returns_is_a_row_and_its_program_is_ended(row_of, arena):
    argv = [sys.executable, "-c", HANGING]
    began = time.monotonic()
    arena.machine.inject("hang", call="cuMemAlloc")
    try:
        row = row_of(lambda setting: compare(setting, argv), timeout_s=4)
        short = row_of(lambda setting: compare(setting, argv), timeout_s=1, is_short=True)
    finally:
        arena.machine.lift()
    assert row.status == "hung"
    assert "killed after" in row.measured
    assert short.status == "cut"  # the run's time was over: that says nothing of the program
    assert time.monotonic() - began < 30
    assert not [folder for folder in Path("/proc").glob("[0-9]*") if is_hanging(folder)]


HANGING = "import ctypes; 'hangs-in-tests-gpu'; d = ctypes.CDLL('libcuda.so.1'); d.cuInit(0);\
c = ctypes.c_void_p(); d.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0); d.cuCtxSetCurrent(c);\
d.cuMemAlloc_v2(ctypes.byref(c), ctypes.c_size_t(8))"


def is_hanging(folder: Path) -> bool:
    try:
        return b"hangs-in-tests-gpu" in (folder / "cmdline").read_bytes()
    except OSError:
        return False


def test_a_hung_program_is_ended_with_all_that_it_started_and_its_last_words_are_kept(tmp_path):
    argv = write_program(
        tmp_path,
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('as far as here', flush=True)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "time.sleep(600)\n",
    )
    with Child(Command(argv, dict(os.environ))) as child:
        session = child.process.pid
        child.wait_for_line("as far as here", 20)
        give_up = time.monotonic() + 20
        while len(children.session_members(session)) < 2 and time.monotonic() < give_up:
            time.sleep(0.02)
        with pytest.raises(children.HungError, match="killed after"):
            child.finish(0.2)
        while children.session_members(session) and time.monotonic() < give_up:
            time.sleep(0.02)
        assert not children.session_members(session)


def test_what_is_not_here_what_fails_and_a_fault_of_the_check_itself_are_rows(row_of, tmp_path):
    missing = row_of(lambda setting: setting.script("torch", "torch_small.py", "eager"))
    assert missing.status == "not here"
    assert "torch" in missing.measured
    broken = write_program(tmp_path, "import sys; sys.exit('the words of the program')")
    failed = row_of(lambda setting: setting.shimmed(broken))
    assert failed.status == "failed"
    assert "the words of the program" in failed.measured
    both = row_of(lambda setting: compare(setting, broken))
    assert both.status == "fails natively"
    assert "without the shim: ended with 1: the words" in both.measured
    silent = write_program(tmp_path, "print('nothing of use')")
    assert "no result" in row_of(lambda setting: setting.native(silent)).measured
    wrong = row_of(lambda setting: 1 / 0)
    assert wrong.status == "failed"
    assert "ZeroDivisionError" in wrong.measured


def test_a_result_that_differs_from_one_native_run_to_the_next_is_not_blamed_on_the_shim(
    row_of, tmp_path
):
    text = "import json, os\nprint(json.dumps({'digest': os.urandom(4).hex(), 'value': VALUE}))\n"
    close = write_program(tmp_path, text.replace("VALUE", "100"))
    row = row_of(lambda setting: compare(setting, close))
    assert row.status == "measured"
    assert "cannot be compared bit for bit" in row.measured
    far = write_program(
        tmp_path,
        text.replace("VALUE", "100 + 5 * ('libpenstock.so' in open('/proc/self/maps').read())"),
    )
    row = row_of(lambda setting: compare(setting, far))
    assert row.status == "differs"
    assert "farther off" in row.measured


def test_a_limit_that_was_passed_is_a_fault_and_an_aim_that_was_missed_is_none(row_of):
    missed = row_of(lambda _: Outcome("slow", aim="fast", reached=False))
    passed = row_of(lambda _: Outcome("too much", aim="less", reached=False, is_fault=True))
    assert (missed.status, is_bad(missed)) == ("measured", False)
    assert (passed.status, is_bad(passed)) == ("wrong", True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ImportError('no libcudnn')", "no libcudnn"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV"),
        ("print('{no json \\0', end=''); import os; os._exit(3)", "{no json ?"),
    ],
)
def test_a_library_that_cannot_be_imported_is_told_once_and_fails_natively(
    row_of, tmp_path, monkeypatch, text, said
):
    (tmp_path / "broken.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def check(setting):
        setting.pythons._found = {"broken": (sys.executable, "?")}
        usable("broken", setting)

    row = row_of(check)
    assert row.status == "fails natively"
    assert said in row.measured
