"""`penstock pool estimate` with code that ends its process, hangs, or prints."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

MODEL = "from torch import nn\n\n\ndef make_model():\n    return nn.Linear(16, 4)\n"


def started(folder, code, *options):
    path = folder / "train.py"
    path.write_text(f"import os, signal, subprocess, sys, time\n{code}\n{MODEL}")
    command = [
        sys.executable, "-m", "penstock", "pool", "estimate", f"{path}:make_model",
        "--input", "8x16", *options,
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(folder, code, *options):
    process = started(folder, code, *options)
    output, problems = process.communicate(timeout=120)
    return process.returncode, output, problems


def appeared(path):
    """The pid that a file contains once it is there."""
    deadline_s = time.monotonic() + 60
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return int(path.read_text())


def has_ended(pid, within_s=10):
    deadline_s = time.monotonic() + within_s
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


def test_what_the_users_code_prints_by_whatever_means_is_not_in_the_output(tmp_path):
    code = (
        "print('by print'); os.write(1, b'by a library in C\\n'); "
        "subprocess.run(['echo', 'by a child'], check=True)"
    )
    status, output, problems = run(tmp_path, code, "-o", "json")
    assert status == 0, problems
    assert json.loads(output)["parameters"] == 16 * 4 + 4
    for text in ("by print", "by a library in C", "by a child"):
        assert text in problems


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("sys.exit(3)", ["train.py:2 ends the program (3)", "__main__"]),
        ("os._exit(0)", ["ended with exit status 0 before", "leave out what ends the process"]),
        ("print('words'); os._exit(7)", ["words", "ended with exit status 7"]),
        ("os.kill(os.getpid(), signal.SIGKILL)", ["signal 9 (Killed)", "want of memory"]),
        (
            "os.kill(os.getpid(), signal.SIGSEGV)",
            ["signal 11 (Segmentation fault)", 'train.py", line 2'],
        ),
    ],
)
def test_code_that_ends_the_process_is_an_error_that_says_how(tmp_path, code, words):
    status, output, problems = run(tmp_path, code)
    assert status == 2
    assert not output
    for word in words:
        assert word in problems
    assert "estimating" in problems or "loading" in problems


def test_code_that_hangs_is_ended_in_time_with_its_children_and_its_line_is_shown(tmp_path):
    code = (
        f"with open({str(tmp_path / 'pid')!r}, 'w') as file:\n"
        "    file.write(str(subprocess.Popen(['sleep', '1000']).pid))\n"
        "time.sleep(1000)"
    )
    status, _, problems = run(tmp_path, code, "--timeout", "5s")
    assert status == 2
    assert "there is no estimate after 5s" in problems
    assert "--timeout" in problems
    assert 'train.py", line 4' in problems
    assert has_ended(appeared(tmp_path / "pid"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_if_the_command_is_ended(tmp_path, number):
    code = (
        f"with open({str(tmp_path / 'pid')!r}, 'w') as file:\n"
        "    file.write(str(os.getpid()))\n"
        "time.sleep(1000)"
    )
    process = started(tmp_path, code)
    pid = appeared(tmp_path / "pid")
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert has_ended(pid)


def test_an_estimate_counts_though_something_keeps_running_after_it(tmp_path):
    code = (
        "import threading\n"
        "if not os.fork():\n"
        "    time.sleep(1000)\n"
        "threading.Thread(target=time.sleep, args=(1000,)).start()"
    )
    status, output, problems = run(tmp_path, code, "-o", "json")
    assert status == 0, problems
    assert json.loads(output)["parameters"] == 16 * 4 + 4


def test_the_users_code_sees_the_environment_of_its_program(tmp_path):
    given = os.environ.get("PYTHONSAFEPATH")
    code = f"assert os.environ.get('PYTHONSAFEPATH') == {given!r}, os.environ\nprint(sys.argv)"
    status, _, problems = run(tmp_path, code)
    assert status == 0, problems
    assert f"['{tmp_path}/train.py']" in problems


@pytest.mark.parametrize("text", ["5x", "0s", "-1s", ""])
def test_a_time_limit_that_is_none_is_refused(tmp_path, text):
    status, _, problems = run(tmp_path, "", "--timeout", text)
    assert status == 2
    assert f"invalid duration for --timeout: {text!r}" in problems
