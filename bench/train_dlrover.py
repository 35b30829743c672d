"""Training with one slow worker: penstock train beside DLRover's dynamic sharding; as JSON.

Usage: build/torch/bin/python -m bench.train_dlrover [ROUNDS] > bench/results/train_dlrover.json

Needs root, for cgroups, and installs DLRover into an environment of its own. Two workers of one
thread have quotas as 3 : 1, 0.7 of a processor together. ResNet-18 learns from 512 images. Arms
alternate; the time of an epoch is that between the moments at which whole multiples of 512
samples were done, the first epoch apart, in which penstock finds the shares.

`penstock`: `penstock train run` on two CPU cards, 64 samples a step, as one process would do them.
`dlrover_ddp`: workers pull shards of 32 samples from DLRover's master and train with
DistributedDataParallel, so each waits for the other at each step. `dlrover_pulling`: they pull the
same and exchange nothing, which is the least that any way to add up their work would take; each
trains a model of its own, so it is no training of one model. DLRover's master and client run as
they are; its launcher does not run with torch 2.15, so the workers are started here.
`gradient_errors`: of one batch at the end in float32, on the cards and in one process, relative to
one process in float64. A machine with other work than this gives no figures: the quotas must be
what limits the workers, so that those that pull take shards as 3 : 1 (`dlrover_samples`).
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.beside_torch import python_with
from bench.card_training import Group

from penstock.bench.interleaved import load_average, quartiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

QUOTAS = (0.525, 0.175)  # of a processor
EPOCH, EPOCHS, SAMPLES, PIXELS = 512, 4, 64, 32
ARMS = ("penstock", "dlrover_ddp", "dlrover_pulling")
PACKAGES = ["dlrover==0.6.1", "kubernetes", "tornado"]  # its master imports the last two


def job(device: str) -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor]:
    """The model, its optimizer, and the data."""
    import torch
    from tests.card.support import models

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = models.resnet18().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return model, optimizer, torch.randn(EPOCH, 3, PIXELS, PIXELS), torch.arange(EPOCH) % 10


def penstock_child() -> None:
    """An ordinary program, but for the quotas of its cards; prints when each step was done."""
    import torch
    from torch.nn.functional import cross_entropy

    from penstock.card.device.start import session

    model, optimizer, images, labels = job("cuda")
    with quotas([card.pid for card in session().cards.cards]):
        done = [(time.monotonic(), 0)]
        for _ in range(EPOCHS):
            for batch in torch.randperm(EPOCH).split(SAMPLES):
                loss = cross_entropy(model(images[batch].to("cuda")), labels[batch].to("cuda"))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                torch.cuda.synchronize()
                done.append((time.monotonic(), len(batch)))
    errors = gradient_errors(model, images[:SAMPLES], labels[:SAMPLES])
    print(json.dumps({"done": done, "gradient_errors": errors}), flush=True)


def gradient_errors(
    model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor
) -> dict[str, float]:
    """How far gradients in float32 are from those of one process in float64, relatively."""
    import torch
    from torch.nn.functional import cross_entropy

    found = []
    for device, dtype in (("cuda", torch.float32), ("cpu", torch.float32), ("cpu", torch.float64)):
        one = copy.deepcopy(model).to(device, dtype)
        one.zero_grad()
        cross_entropy(one(images.to(device, dtype)), labels.to(device)).backward()
        parts = [p.grad.cpu().double().flatten() for p in one.parameters() if p.grad is not None]
        found.append(torch.cat(parts))
    cards, process, exact = found
    errors = {"cards": cards, "one_process": process}
    return {arm: ((one - exact).norm() / exact.norm()).item() for arm, one in errors.items()}


@contextlib.contextmanager
def quotas(pids: list[int]) -> Iterator[None]:
    """The workers have their quotas meanwhile."""
    groups = []
    for pid, quota in zip(pids, QUOTAS, strict=True):
        groups.append(Group(f"penstock-bench-{os.getpid()}-{pid}", quota))
        groups[-1].add(pid)
    try:
        yield
    finally:
        for pid, group in zip(pids, groups, strict=True):
            Path(group.folder.parent, "cgroup.procs").write_text(str(pid))
            group.remove()


def dlrover_child(arm: str) -> None:
    """A worker that pulls shards; prints when each batch was done."""
    import torch
    from torch.distributed.algorithms.join import Join
    from torch.nn.functional import cross_entropy

    sharding = importlib.import_module("dlrover.python.elastic_agent.sharding.client")
    own, optimizer, images, labels = job("cpu")
    model = own
    if arm == "dlrover_ddp":
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(own)
    batch = SAMPLES // len(QUOTAS)
    print("ready", flush=True)
    input()  # the quotas are there
    client = sharding.IndexShardingClient(
        dataset_name="images", batch_size=batch, num_epochs=EPOCHS, dataset_size=EPOCH,
        num_minibatches_per_shard=1, shuffle=True,
    )  # fmt: skip
    done = [(time.monotonic(), 0)]
    with Join([model]) if arm == "dlrover_ddp" else contextlib.nullcontext():
        while True:
            try:
                chosen = [client.fetch_sample_index() for _ in range(batch)]
            except StopIteration:
                break
            optimizer.zero_grad()
            cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            client.report_batch_done(batch)
            done.append((time.monotonic(), batch))
    print(json.dumps({"done": done}), flush=True)


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def dlrover(arm: str, python: Path) -> dict[str, Any]:
    """Runs DLRover's master and two workers to the end of the last epoch."""
    port, meeting = free_port(), free_port()
    base = {**environment(), "DLROVER_MASTER_ADDR": f"127.0.0.1:{port}", "NODE_NUM": "2"}
    master = subprocess.Popen(
        [python, "-W", "ignore", "-m", "dlrover.python.master.main", "--platform", "local",
         "--port", str(port), "--node_num", "2", "--job_name", "bench"],
        env=base, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    workers = []
    try:
        until_s = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            if time.monotonic() > until_s or master.poll() is not None:
                raise RuntimeError("DLRover's master does not start")
            time.sleep(0.2)
        for rank in ("0", "1"):
            own = {"NODE_ID": rank, "WORKER_ID": rank, "NODE_RANK": rank, "RANK": rank,
                   "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(meeting),
                   "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
            workers.append(subprocess.Popen(
                [python, "-W", "ignore", __file__, "--dlrover", arm], env=base | own, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            ))  # fmt: skip
        for one in workers:
            told(one, "ready")
        with quotas([one.pid for one in workers]):
            for one in workers:
                print("go", file=one.stdin, flush=True)
            found = [json.loads(told(one, '{"done"')) for one in workers]
        return {"done": [moment for one in found for moment in one["done"]],
                "samples": [sum(count for _, count in one["done"]) for one in found]}  # fmt: skip
    finally:
        for process in (*workers, master):
            process.kill()
            process.wait()


def told(process: subprocess.Popen[str], start: str) -> str:
    """The first line of a worker that begins so. Raises `RuntimeError` if there is none."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start):
            return line
    raise RuntimeError(f"a worker has ended without {start}")


def environment() -> dict[str, str]:
    """What the programs of both find: this tree, and one thread for each."""
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def penstock() -> dict[str, Any]:
    """Runs `penstock train run` to its end."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "penstock", "train", "run", "--cards", "cpu,cpu", "--",
             sys.executable, "-W", "ignore", __file__, "--penstock"],
            env=environment() | {"PENSTOCK_TRAIN_DIR": folder, "XDG_RUNTIME_DIR": folder},
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def epochs_s(done: list[tuple[float, int]]) -> list[float]:
    """How long each epoch took: until so many samples were done, by whomever."""
    moments = sorted((at_s, count) for at_s, count in done)
    ends, samples = [moments[0][0]], 0
    for at_s, count in moments:
        samples += count
        if samples >= EPOCH * len(ends):
            ends.append(at_s)
    return [after - before for before, after in itertools.pairwise(ends)]


def main(rounds: int) -> None:
    """Prints the figures."""
    python, before = python_with("dlrover", PACKAGES), load_average()
    found: list[dict[str, Any]] = []
    for number in range(rounds):
        found.append({arm: penstock() if arm == "penstock" else dlrover(arm, python)
                      for arm in ARMS})  # fmt: skip
        print(f"round {number + 1} of {rounds} is done", file=sys.stderr)
    times_s = [{arm: epochs_s(one[arm]["done"]) for arm in ARMS} for one in found]
    settled = [{arm: statistics.mean(one[arm][1:]) for arm in ARMS} for one in times_s]
    result = {
        "quotas": QUOTAS, "samples": SAMPLES, "epoch_samples": EPOCH, "packages": PACKAGES,
        "rounds": rounds, "load_before": before,
        "epoch_s": {arm: quartiles([one[arm] for one in settled]) for arm in ARMS},
        "first_epoch_s": {arm: quartiles([one[arm][0] for one in times_s]) for arm in ARMS},
        "penstock_to": {arm: quartiles([one["penstock"] / one[arm] for one in settled])
                        for arm in ARMS[1:]},
        "gradient_errors": [one["penstock"]["gradient_errors"] for one in found],
        "dlrover_samples": {arm: found[-1][arm]["samples"] for arm in ARMS[1:]},
        "load_after": load_average(),
    }  # fmt: skip
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--penstock"]:
        penstock_child()
    elif sys.argv[1:2] == ["--dlrover"]:
        dlrover_child(sys.argv[2])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
