"""`penstock train run`: what it starts, what it says when a rank fails, and how it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil
import pytest


def train(penstock, code, *cards, **options):
    named = [f"--card={one}" for one in cards]
    return penstock("train", "run", *named, "--", sys.executable, "-c", code, **options)


PLACE = "import os; place = os.environ['PENSTOCK_RANK']; rank = int(place[0])\n"


def test_each_card_has_a_rank_with_its_own_device_and_rank_0_prints(penstock, tmp_path):
    code = PLACE + (
        "open(f'rank{rank}', 'w').write(f\"{place.split('@')[0]} {place.split('@')[3]} "
        "{os.environ['CUDA_VISIBLE_DEVICES']}\")\nprint('rank', rank)"
    )
    done = train(penstock, code, "cuda:1=3", "cuda:0", "cpu=0.5", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "rank 0\n", "")
    assert [(tmp_path / f"rank{i}").read_text() for i in range(3)] == [
        "0/3 3:1:0.5 1", "1/3 3:1:0.5 0", "2/3 3:1:0.5 ",
    ]  # fmt: skip


def test_a_rank_that_fails_is_named_with_its_last_lines_and_ends_the_others(penstock):
    code = PLACE + (
        "import sys, time\nif rank == 1: print('the\\x1b[31m reason'); sys.exit(3)\ntime.sleep(60)"
    )
    began_s = time.monotonic()
    done = train(penstock, code, "cpu", "cpu", "cpu")
    assert time.monotonic() - began_s < 30
    assert done.returncode == 3
    assert "rank 1 (cpu) ended with exit status 3; the other ranks are ended" in done.stderr
    assert "the[31m reason" in done.stderr
    assert "\x1b" not in done.stderr


def test_a_rank_that_is_killed_is_named_with_its_signal(penstock):
    code = PLACE + "import signal\nif rank == 2: os.kill(os.getpid(), 9)\nsignal.pause()"
    done = train(penstock, code, "cpu", "cpu", "cpu")
    assert done.returncode == 137
    assert "rank 2 (cpu) was killed by signal 9" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_all_ranks_once_and_the_job_ends_with_it(penstock, tmp_path, number):
    code = PLACE + (
        "import signal, sys, time\n"
        "def said(number, _):\n"
        "    open(f'said{rank}', 'a').write(f'{number} '); sys.exit(0)\n"
        f"signal.signal({int(number)}, said)\n"
        "open(f'ready{rank}', 'w')\n"
        "while True: time.sleep(0.1)"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "train", "run", "--card=cpu", "--card=cpu", "--",
         sys.executable, "-c", code], env=penstock.environment, cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    penstock.started.append(process)
    until_s = time.monotonic() + 30
    while len(list(tmp_path.glob("ready*"))) < 2 and time.monotonic() < until_s:
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(30) == 128 + number
    assert {(tmp_path / f"said{i}").read_text() for i in range(2)} == {f"{int(number)} "}


def test_ranks_end_with_a_job_that_is_killed(penstock, tmp_path):
    code = PLACE + "import time\nopen(f'pid{os.getpid()}', 'w')\nwhile True: time.sleep(0.1)"
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "train", "run", "--card=cpu", "--card=cpu", "--",
         sys.executable, "-c", code], env=penstock.environment, cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    penstock.started.append(process)
    until_s = time.monotonic() + 30
    while len(found := list(tmp_path.glob("pid*"))) < 2 and time.monotonic() < until_s:
        time.sleep(0.05)
    process.kill()
    process.wait()
    pids = [int(one.name[3:]) for one in found]
    assert len(pids) == 2
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, pids))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--", "true"], "no card is given"),
        (["--card=cudo:0", "--", "true"], "did you mean cuda?"),
        (["--card=cpu:1", "--", "true"], "all CPU cards are the same processors"),
        (["--card=cuda:x", "--", "true"], "no number of a device"),
        (["--card=cpu=0", "--", "true"], "a number above 0 is needed"),
        (["--card=cpu=nan", "--", "true"], "a number above 0 is needed"),
        (["--card=cpu", "--", "/no/such/program"], "cannot start /no/such/program"),
        (["--card=cpu", "--", ""], "the command's name is empty"),
        (["--card=cpu"], "Missing argument"),
        (["--card=cpu", "--seed=-1", "--", "true"], "seed"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_do(penstock, arguments, words):
    done = penstock("train", "run", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
