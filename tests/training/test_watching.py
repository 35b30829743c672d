"""What people look at: a run's loss and speed in its status, TensorBoard's files and metrics."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.training.conftest import penstock, python
from tests.training.test_documents import GOOD, written
from tests.training.test_runs import job, supervised, wait_for
from tests.training.test_training import workers_of

from penstock.model import PenstockError
from penstock.training import metrics
from penstock.training.document import load_job
from penstock.training.metrics import check_address
from penstock.training.run import create, find, runs
from penstock.training.supervisor import Supervisor

HOW_TO = Path(__file__).parents[2] / "docs/how-to/train.md"
TRAINS = """
import os, sys, time
if os.environ["PENSTOCK_TRAIN_ATTEMPT"] == "1" and "fails" in sys.argv:
    time.sleep(3)
    raise SystemExit(1)
import torch
torch.manual_seed(1)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh(), torch.nn.Linear(256, 4))
model = model.to("cuda")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.randn(64, 256); y = x[:, :4].argmax(1)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x.to("cuda")), y.to("cuda"))
    loss.backward()
    optimizer.step()
    print(step + 1, f"{loss.item():.6f}")
    time.sleep(0.02)
time.sleep(float(sys.argv[2]))
"""


@contextlib.contextmanager
def trained(*options, program=TRAINS, steps=100_000, rest_s=0):
    """A run of a program that trains on cards of speeds 1 and 3."""
    command = ["train", "run", "--cards", "cpu=1,cpu=3", *options, "--", *python(program)]
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", *command, str(steps), str(rest_s)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def figures_when(holds, within_s=120):
    """The figures of the only run's program, once they are as wanted."""
    end_s = time.monotonic() + within_s
    while True:
        told = penstock("train", "status", "run-1", "-o", "json")
        for one in json.loads(told.stdout)["programs"] if told.returncode == 0 else []:
            if holds(one):
                return one
        assert time.monotonic() < end_s, told.stdout + told.stderr


def losses_of(run):
    """By step, what the program printed."""
    lines = [one.split() for one in run.output.read_text().splitlines()]
    return {int(one[0]): float(one[1]) for one in lines if len(one) == 2 and one[0].isdigit()}


def test_the_status_of_a_run_shows_its_loss_and_its_samples_a_second():
    with trained():
        found = figures_when(lambda one: one["loss"] is not None and one["samples_per_s"])
        shown = penstock("train", "status", "run-1").stdout
    losses = losses_of(runs()[0])
    assert found["loss"] == pytest.approx(losses[found["loss_step"]], abs=2e-6)
    assert found["samples"] == 64 * found["steps"]
    assert [card["rows"] for card in found["cards"]] == [16, 48]
    rates = [card["samples_per_s"] for card in found["cards"]]
    assert sum(rates) == pytest.approx(found["samples_per_s"])
    assert rates[1] == pytest.approx(3 * rates[0])
    assert re.search(r"loss [\d.]+, [\d,.]+ samples/s", shown)


NO_BATCHES = """
import time, torch
own = torch.zeros(64, device="cuda", requires_grad=True)
while True:
    (own * 2).backward(torch.ones(64, device="cuda"))
    time.sleep(0.02)
"""


def test_a_program_of_which_neither_is_known_shows_neither():
    with trained(program=NO_BATCHES):
        found = figures_when(lambda one: one["steps"] > 60)
        shown = penstock("train", "status", "run-1").stdout
    assert (found["loss"], found["samples"], found["samples_per_s"]) == (None, None, None)
    assert "loss -, - samples/s" in shown


# TensorBoard.


def curves_of(run, attempt):
    """TensorBoard's own reader of what an attempt's folder has."""
    found = EventAccumulator(str(run.folder / "tensorboard" / f"attempt-{attempt}"))
    return found.Reload()


def texts_of(curves):
    return [one.tensor_proto.string_val[0].decode() for one in curves.Tensors("events")]


def test_tensorboard_reads_the_loss_and_the_speed_of_a_run():
    with trained(steps=150, rest_s=3) as process:
        process.wait(240)
    run = find("run-1")
    curves = curves_of(run, 1)
    losses = losses_of(run)
    read = curves.Scalars("loss")
    assert len(read) >= 2
    assert all(one.value == pytest.approx(losses[one.step], abs=2e-6) for one in read)
    tags = curves.Tags()["scalars"]
    assert {"steps_per_s", "samples_per_s"} < set(tags)
    shares = [curves.Scalars(one)[-1].value for one in tags if one.startswith("share/")]
    assert shares == [0.25, 0.75]
    assert sum(one.startswith("busy_percent/") for one in tags) == 2
    assert texts_of(curves)[0].startswith("started: attempt 1, pid ")
    assert texts_of(curves)[-1] == "succeeded"


def test_each_attempt_has_curves_of_its_own_and_lost_cards_are_told_in_them(tmp_path):
    text = GOOD.replace("[python, train.py]", f"[{sys.executable}, train.py, '100000', '0', fails]")
    written(tmp_path, text.replace("[cpu, cpu]", "['cpu=1', 'cpu=3']") + "  restarts: 1\n")
    (tmp_path / "train.py").write_text(TRAINS)
    run = find(penstock("train", "submit", tmp_path / "job.yaml").stdout.strip())
    try:
        wait_for(lambda: len(losses_of(run)) > 5, 120)
        os.kill(workers_of(run.state().pid)[0], signal.SIGKILL)
        wait_for(lambda: "card-lost" in [one.event for one in run.events()], 120)
        wait_for(lambda: any("card-lost" in one for one in texts_of(curves_of(run, 2))), 60)
        wait_for(lambda: "loss" in curves_of(run, 2).Tags()["scalars"], 60)
        os.kill(run.supervisor(), signal.SIGKILL)
        assert "restarting" in str(texts_of(curves_of(run, 1)))
        curves = curves_of(run, 2)  # nobody closed it
        assert curves.Scalars("loss")[-1].step <= len(losses_of(run))
    finally:
        penstock("train", "stop", run)


def test_without_tensorboard_nothing_is_written_and_nothing_is_said(tmp_path, monkeypatch):
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard/__init__.py").write_text("raise ModuleNotFoundError('tensorboard')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    assert penstock("train", "run", "--cards", "cpu", "--", "true").returncode == 0
    (run,) = runs()
    assert not (run.folder / "tensorboard").exists()
    assert [one.event for one in run.events()] == ["started", "succeeded"]


def test_a_disk_that_is_full_ends_the_curves_and_not_the_run(tmp_path):
    run = create(job(["sleep", "2"]))
    (run.folder / "tensorboard").write_text("")  # no folder can be made in its place
    assert Supervisor(run).run().phase == "succeeded"
    assert "tensorboard-not-written" in [one.event for one in run.events()]


# Metrics.


def scraped(port):
    """All samples by their names and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    return {
        (one.name, *(one.labels[name] for name in one.labels if name not in {"project", "run"})):
        one.value
        for family in text_string_to_metric_families(text) for one in family.samples
    }  # fmt: skip


def test_a_run_serves_what_it_does_as_metrics():
    port = free_port()
    with trained("--metrics", f"127.0.0.1:{port}", "--restarts", "2"):
        figures_when(lambda one: one["loss"] is not None and one["samples"])
        found = scraped(port)
        os.kill(workers_of(runs()[0].state().pid)[0], signal.SIGKILL)
        wait_for(lambda: scraped(port)["penstock_train_cards_lost_total",] == 1, 120)
        os.kill(runs()[0].state().pid, signal.SIGKILL)
        wait_for(lambda: scraped(port)["penstock_train_restarts_total",] == 1, 60)
    losses = losses_of(runs()[0])
    assert found["penstock_train_phase", "running"] == 1
    assert found["penstock_train_attempts_total",] == 1
    assert any(found["penstock_train_loss",] == pytest.approx(one, abs=2e-6)
               for one in losses.values())  # fmt: skip
    assert found["penstock_train_samples_total",] == 64 * found["penstock_train_steps_total",]
    assert found["penstock_train_card_share_ratio", "0"] == 0.25
    assert found["penstock_train_card_share_ratio", "1"] == 0.75
    assert 0 <= found["penstock_train_card_busy_ratio", "0"] <= 1
    assert found["penstock_train_card_uploaded_bytes_total", "1"] > 0
    assert found["penstock_train_card_info", "0", "cpu", socket.gethostname()] == 1
    with pytest.raises(OSError, match="refused"):
        scraped(port)


def test_an_address_that_cannot_be_served_is_refused_before_there_is_a_run(projects):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for bad, why in {address: "Address already in use", "192.0.2.1:9": "Cannot assign"}.items():
            done = penstock("train", "run", "--cards", "cpu", "--metrics", bad, "--", "true")
            assert done.returncode == 2
            assert f"cannot serve metrics on {bad}: {why}" in done.stderr
        with pytest.raises(PenstockError, match="Address already in use"):
            check_address(address)
        assert not projects.exists()
        run, state = supervised(["true"], metrics=address)  # it was taken after the run was made
    assert (state.phase, [one.event for one in run.events()]) == (
        "failed",
        ["not-started", "failed"],
    )


@pytest.mark.parametrize("bad", ["9470", "host:", "host:x", "host:99999"])
def test_what_is_no_address_is_refused_with_its_line(tmp_path, bad):
    with pytest.raises(PenstockError, match=r"job\.yaml:8:12: spec\.metrics: .*HOST:PORT"):
        load_job(written(tmp_path, GOOD + f"  metrics: '{bad}'\n"))


def test_the_page_for_users_has_all_metrics_and_no_others():
    named = set(re.findall(r"`(penstock_train_\w+)`", HOW_TO.read_text()))
    assert named == {one.name for _, group in metrics.GROUPS for one in group}
