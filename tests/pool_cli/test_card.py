"""PyTorch programs with a card of a real pool: `penstock run --tflops`, the device, the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agent.conftest import wait_until
from tests.pool_cli.test_real import BLOCKS, is_free, phases, real_pool
from tests.support.named_processes import named

from penstock.node.agent.card_workers import CARD_VARIABLE
from penstock.node.tenants.tenant_processes import TENANT_VARIABLE, environments, members_of

REPOSITORY = Path(__file__).parents[2]
PYTHON = REPOSITORY / "build" / "torch" / "bin" / "python"
STEPS = "--steps=3"


@pytest.fixture
def torch_python():
    if not PYTHON.exists():
        pytest.skip("no environment with torch: make build/torch/.installed")
    return str(PYTHON)


@pytest.fixture
def real(tmp_path, torch_python):
    with real_pool(tmp_path, f"--card-python={torch_python}") as commands:
        yield commands


def losses(text):
    return [float(line.rpartition(" ")[2]) for line in text.splitlines()]


@pytest.mark.parametrize("program", ["images.py", "words.py"])
def test_a_pytorch_program_trains_on_blocks_of_the_pool_and_gives_them_back(
    real, torch_python, program
):
    file = str(REPOSITORY / "examples" / "pytorch" / program)
    wanted = subprocess.run(
        [torch_python, file, "--device=cpu", STEPS], capture_output=True, text=True, check=True
    )
    process = started(real, torch_python, file, STEPS)
    wait_until(lambda: phases(real).get("train") == "running", 60)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert losses(out) == pytest.approx(losses(wanted.stdout), rel=1e-3)
    assert "50 blocks (1-50)" in errors
    wait_until(lambda: is_free(real), 30)


def test_more_than_the_pool_has_is_refused_before_the_program_starts(real, torch_python):
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "run", "--tflops", str(BLOCKS + 1), "--", torch_python,
         "-c", "print('started')"],
        env=real.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"it asks for {BLOCKS + 1} blocks of {BLOCKS}" in done.stderr
    assert "started" not in done.stdout


IN_PYTHON = """
import {first}
import {second}
with penstock.acquire(tflops=50, span="pool", name="train") as card:
    own = torch.arange(6.0, device="penstock")
    print(card.blocks, own.sum().item(), torch.cuda.is_available())
"""


@pytest.mark.parametrize(("first", "second"), [("penstock", "torch"), ("torch", "penstock")])
def test_a_program_acquires_its_card_itself_before_or_after_it_has_loaded_torch(
    real, torch_python, first, second
):
    code = IN_PYTHON.format(first=first, second=second)
    done = subprocess.run([torch_python, "-c", code], env=real.environment, capture_output=True,
                          text=True, check=False, timeout=120)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "50 15.0 False\n"
    wait_until(lambda: is_free(real), 30)


def test_a_program_that_is_killed_gives_its_blocks_and_its_cards_back(real, torch_python):
    code = "import torch; torch.ones(9, device='penstock').sum().item(); print('on'); input()"
    command = [sys.executable, "-m", "penstock", "run", "--tflops", "50", "--name", "train", "--"]
    process = subprocess.Popen(
        [*command, torch_python, "-c", code], env=real.environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    real.started.append(process)
    assert process.stdout.readline() == "on\n"
    workers = cards_of(real)
    assert len(workers) == 1
    (program,) = children_of(process.pid)
    os.kill(program, signal.SIGKILL)
    assert process.wait(30) == 137
    wait_until(lambda: is_free(real), 30)
    wait_until(lambda: not card_processes(real), 30)


LOOP = """
import time, torch
own = torch.ones(9, device="penstock")
print(own.sum().item(), flush=True)
while True:
    own.add_(1)
    own.sum().item()
    time.sleep(0.05)
"""


def test_a_program_whose_card_is_killed_is_told_where_it_is_said_how(real, torch_python):
    process = started(real, torch_python, "-c", LOOP)
    assert process.stdout.readline() == "9.0\n"
    (worker,) = cards_of(real)
    os.kill(worker, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    last = next(line for line in errors.splitlines() if "CardError" in line)
    assert f"pid {worker}) is gone: its connection ended" in last
    assert "how its worker ended: penstock events train on node " in last
    said = subprocess.run(
        [sys.executable, "-m", "penstock", "events", "train"], env=real.environment, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert "card-ended" in said.stdout, said.stderr
    assert "the worker of its card ended (killed by signal 9)" in said.stdout


TRAINS = """
import time, torch
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
layer = torch.nn.Linear(4, 4).to(device)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for step in range(60):
    optimizer.zero_grad()
    layer(torch.ones(8, 4).to(device)).pow(2).mean().backward()
    optimizer.step()
    print(step, layer.weight.device, flush=True)
    time.sleep(0.05)
"""


def test_a_training_run_claims_its_card_and_goes_on_when_that_is_killed(
    real, torch_python, tmp_path
):
    environment = {**real.environment, "PENSTOCK_TRAIN_DIR": str(tmp_path / "runs")}
    command = ["train", "run", "--tflops", "50", "--", torch_python, "-c", TRAINS]
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", *command], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        real.started.append(process)
        lines = [process.stdout.readline() for _ in range(5)]
        (worker,) = cards_of(real, "default.run-1")
        os.kill(worker, signal.SIGKILL)
        lines += process.stdout.readlines()
        assert process.wait(60) == 0, process.stderr.read()
    steps = [line.split() for line in lines if line[0].isdigit()]
    assert steps == [[str(step), "penstock:0"] for step in range(60)]
    assert any("all cards run again" in line for line in lines)
    wait_until(lambda: is_free(real), 30)


def test_a_program_whose_blocks_are_released_is_told_why_its_device_has_gone(real, torch_python):
    process = started(real, torch_python, "-c", LOOP)
    assert process.stdout.readline() == "9.0\n"
    assert real("release", "train").returncode == 0
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "CardError: application train has ended: " in errors
    wait_until(lambda: not card_processes(real), 30)


def test_a_training_goes_on_while_its_blocks_become_fewer_and_more(real, torch_python):
    steps = "--steps=40"
    file = str(REPOSITORY / "examples" / "pytorch" / "words.py")
    wanted = subprocess.run(
        [torch_python, file, "--device=cpu", steps], capture_output=True, text=True, check=True
    )
    process = started(real, torch_python, file, steps)
    first = process.stdout.readline()
    before = cards_of(real)
    assert real("resize", "train", "--tflops=20").returncode == 0
    wait_until(lambda: cards_of(real) and cards_of(real) != before, 60)
    assert real("resize", "train", "--tflops=70").returncode == 0
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert losses(first + out) == pytest.approx(losses(wanted.stdout), rel=1e-3)
    wait_until(lambda: is_free(real), 30)


def started(commands, *program):
    """A program that has 50 blocks, as application "train"."""
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "run", "--tflops", "50", "--name", "train", "--",
         *program],
        env=commands.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    commands.started.append(process)
    return process


def cards_of(commands, name="train"):
    """The pids of the workers that serve an application."""
    return named("card-worker", card_processes(commands, name))


def card_processes(commands, name="train"):
    """The pids of all processes of cards that the agent has started for an application."""
    directory = commands.node.state / "tenants" / name
    return members_of(
        {pid: one for pid, one in environments(TENANT_VARIABLE, CARD_VARIABLE).items()
         if CARD_VARIABLE in one}, directory,
    )  # fmt: skip


def children_of(pid):
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]
