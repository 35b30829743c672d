"""`penstock train run`: programs for one GPU train on unlike cards as on one, also over losses."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from tests.support.named_processes import named
from tests.training.conftest import PROGRAMS, penstock, python
from tests.training.programs.patterns import PATTERNS

from penstock.training.run import runs

CARDS = "cpu=1,cpu=2,cpu=4"


def figures(text):
    return {name: float(value) for name, value in map(str.split, text.splitlines())}


@pytest.fixture(scope="module")
def on_one_device():
    done = subprocess.run(
        [sys.executable, PROGRAMS / "patterns.py"], capture_output=True, text=True, check=True
    )
    return figures(done.stdout)


@pytest.fixture(scope="module")
def on_cards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("projects")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_TRAIN_DIR", str(folder))
        done = penstock(
            "train", "run", "--cards", CARDS, "--", sys.executable, "-W", "ignore",
            PROGRAMS / "split_all.py", PROGRAMS / "patterns.py", timeout=300,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return figures(done.stdout)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_programs_for_one_device_do_has_the_same_result_on_unlike_cards(
    on_one_device, on_cards, pattern
):
    assert on_cards[pattern] == pytest.approx(on_one_device[pattern], rel=1e-9)


TRAINS = """
import sys, time, torch
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(1)
torch.set_num_threads(1)
layers = torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)
model = torch.nn.Sequential(*layers).to(device)
optimizer = torch.optim.Adam(model.parameters(), 0.01)
x = torch.randn(64, 16); y = x[:, :4].argmax(1)
for step in range(60):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.5f}")
    time.sleep(0.05)
"""


def workers_of(pid):
    """The workers of the program with this pid, by their pids."""
    below = psutil.Process(pid).children(recursive=True)
    return sorted(named("card-worker", [one.pid for one in below]))


def test_a_run_that_loses_cards_has_the_losses_of_an_undisturbed_one():
    expected = subprocess.run(
        python(TRAINS), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    command = ["train", "run", "--cards", "cpu=1,cpu=2", "--", *python(TRAINS)]
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", *command],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        lines = []
        for card, number in ((1, signal.SIGKILL), (0, signal.SIGSTOP)):
            lines += [process.stdout.readline() for _ in range(10)]
            (run,) = runs()
            os.kill(workers_of(run.state().pid)[card], number)
        lines += process.stdout.read().splitlines(keepends=True)
        assert process.wait(30) == 0, lines
    assert [one.strip() for one in lines if one[0].isdigit()] == expected
    events = [one.event for one in run.events()]
    assert events == ["started", "card-lost", "card-lost", "succeeded"]
    assert "all cards run again" in run.events()[1].text


def test_a_program_that_trains_on_the_cpu_is_told_what_to_write():
    text = (
        "import torch; m = torch.nn.Linear(2, 2); o = torch.optim.SGD(m.parameters(), 1); o.step()"
    )
    done = penstock("train", "run", "--cards", "cpu,cpu", "--", *python(text))
    assert done.returncode == 1
    assert (
        'trains on the CPU: move the model and each batch to the device, as in model.to("cuda")'
        in done.stdout
    )
    assert "failed: the program ended with exit code 1" in done.stderr


def test_a_program_without_an_optimizer_that_trained_on_the_cpu_is_told_at_its_end():
    text = "import torch; p = torch.ones(2, requires_grad=True); p.sum().backward(); print(p.grad)"
    done = penstock("train", "run", "--cards", "cpu,cpu", "--", *python(text))
    assert done.returncode == 0
    assert "this program has trained on the CPU, and its cards did nothing" in done.stdout


BAD = {
    (): "neither --cards nor --tflops is given",
    ("--cards", "cpu", "--tflops", "3"): "both --cards and --tflops are given",
    ("--cards", "gpu=fast"): "invalid card 'gpu=fast'",
    ("--cards", "cpu,"): "invalid card ''",
    ("--cards", "cpu", "--split", "wighted"): "did you mean weighted?",
    ("--cards", "cpu=1", "--split", "even"): "contradicts speeds",
    ("--cards", "cpu", "--restarts", "-1"): "--restarts",
    ("--cards", "cpu", "--project", "No Name"): "'No Name' is not a name",
    ("--cards", "cpu", "--priority", "3"): "--priority cannot be given without --tflops",
    ("--tflops", "3", "--priority", "high"): "high",
}


@pytest.mark.parametrize("options", BAD, ids=" ".join)
def test_options_that_make_no_sense_are_refused_and_leave_no_run(options, projects):
    done = penstock("train", "run", *options, "--", "true")
    assert done.returncode == 2
    assert BAD[options] in " ".join(done.stderr.replace("│", " ").split())
    assert not projects.exists()


def test_the_exit_code_is_the_programs_or_says_its_signal():
    for text, code in (("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)):
        assert penstock("train", "run", "--cards", "cpu", "--", *python(text)).returncode == code
    assert penstock("train", "run", "--cards", "cpu", "--", "/nowhere").returncode == 127


def test_ctrl_c_stops_the_run_and_its_program():
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "train", "run", "--cards", "cpu", "--",
         *python("import time; print('on'); time.sleep(100)")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "on\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 143, out + err
    assert "stopped: it was told to stop" in err
    assert runs()[0].state().phase == "stopped"


def test_the_status_of_a_run_shows_its_cards_and_their_work_and_losses():
    command = ["train", "run", "--cards", "cpu=1,cpu=3", "--", *python(TRAINS)]
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", *command],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        deadline_s = time.monotonic() + 60
        programs = []
        while not programs and time.monotonic() < deadline_s and process.poll() is None:
            told = penstock("train", "status", "run-1", "-o", "json")
            programs = json.loads(told.stdout)["programs"] if told.returncode == 0 else []
        assert [card["share"] for card in programs[0]["cards"]] == [0.25, 0.75]
        os.kill(workers_of(programs[0]["pid"])[0], signal.SIGKILL)
        while "card-lost" not in [one.event for one in runs()[0].events()]:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        told = penstock("train", "status", "run-1").stdout
        assert "is gone: its process ended (killed by signal 9)" in told
        assert "0 cpu of node" in told, "its cards are still shown"
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


@pytest.mark.parametrize("name", ["/dev/full/x", "/proc/nothing"])
def test_a_folder_that_cannot_keep_runs_is_refused(monkeypatch, name):
    monkeypatch.setenv("PENSTOCK_TRAIN_DIR", name)
    done = penstock("train", "run", "--cards", "cpu", "--", "true")
    assert done.returncode == 2
    assert "cannot keep a run in" in done.stderr
