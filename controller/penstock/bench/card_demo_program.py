"""The program of `penstock demo card`: trains one small network on the CPU, then on the device.

It is an ordinary PyTorch program. One of its lines is slow on purpose, so that there is something
to be seen: the median over the batch needs the rows of all cards.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from torch import nn

BATCH = 224


def network() -> nn.Module:
    """A small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16 * 5 * 5, 10),
    )  # fmt: skip


def train(device: str, steps: int, told_every: int = 10) -> None:
    """Trains from one start with one sequence of batches, and prints the losses."""
    torch.manual_seed(11)
    model = network()
    patterns = torch.randn(10, 1, 20, 20)
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    began_s = time.monotonic()
    for step in range(1, steps + 1):
        labels = torch.randint(10, (BATCH,))
        images = patterns[labels] + torch.randn(BATCH, 1, 20, 20)
        out = model(images.to(device))
        loss = nn.functional.cross_entropy(out, labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        middle = out.detach().median(0).values.mean()  # the slow line: it gathers all rows
        if step % told_every == 0:
            values = {"loss": loss.item(), "median": middle.item()}
            tell(device=device, step=step, seconds=time.monotonic() - began_s, **values)


def tell(**values: object) -> None:
    """Prints something for who started this."""
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(2)
    for name in ("cpu", "penstock"):
        train(name, int(sys.argv[1]))
    tell(device="penstock", of=torch.penstock.get_device_name())
