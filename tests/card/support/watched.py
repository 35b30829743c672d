"""A program in a process of its own that trains until the test ends it, and is watched."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from penstock.card import published

PROGRAM = """
import sys, torch
from torch import nn
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)).to("penstock")
optimizer = torch.optim.SGD(model.parameters(), 0.01)
print("begun", flush=True)
for step in range(int(sys.argv[1])):
    inputs = torch.randn(896, 32).to("penstock")
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    order = model(inputs).sort(0).values  # line 14
    value = loss.item()  # line 15
print("ended", flush=True)
"""
SORT, ITEM = 14, 15


class Watched:
    """The program, of which figures are published in a folder of its own."""

    def __init__(self, folder, steps=1_000_000, **variables):
        folder.mkdir(mode=0o700, exist_ok=True)
        self.folder = folder
        self.file = folder / "train.py"
        self.file.write_text(PROGRAM)
        self.environment = {**os.environ, "PENSTOCK_CARD": "cpu=1,cpu=2,cpu=4",
                            "XDG_RUNTIME_DIR": str(folder), **variables}  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, str(self.file), str(steps)], env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout.readline() == "begun\n", self.process.stderr.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    @property
    def pid(self):
        """Its process."""
        return self.process.pid

    def wait_end(self):
        """Waits until it has ended well; returns what it said on standard error."""
        out, errors = self.process.communicate(timeout=100)
        assert (self.process.returncode, out) == (0, "ended\n"), errors
        return errors

    def top(self, *arguments):
        """Runs `penstock card top`."""
        return subprocess.run(
            [sys.executable, "-m", "penstock", "card", "top", *arguments],
            env=self.environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip


def figures_when(wanted, pid, timeout_s=40):
    """The first figures of a program for which `wanted` is true."""
    end_s = time.monotonic() + timeout_s
    last = None
    while time.monotonic() < end_s:
        for one in published.read_all()[0]:
            if one.pid == pid:
                last = one
                if wanted(one):
                    return one
        time.sleep(0.1)
    raise AssertionError(f"not in {timeout_s} s; last: {last}")
