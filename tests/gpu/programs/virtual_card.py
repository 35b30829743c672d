"""A training on a virtual card of unlike cards: python virtual_card.py CARDS [MIB].

Prints the largest difference between its losses and those of the CPU, and each card's memory. MIB:
an allocation that must be refused as out of memory, after which the training goes on.
"""

import os
import sys

os.environ["PENSTOCK_CARD"] = sys.argv[1]

import torch
import torch.nn.functional as f
from say import say
from torch import nn

STEPS, BATCH = 12, 96


def model():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
        nn.Flatten(), nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 10),
    )  # fmt: skip


def losses(device, steps=STEPS):
    net = model().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    random = torch.Generator().manual_seed(5)
    found = []
    for _ in range(steps):
        images = torch.randn(BATCH, 3, 24, 24, generator=random)
        classes = torch.randint(0, 10, (BATCH,), generator=random)
        loss = f.cross_entropy(net(images.to(device)), classes.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def is_refused(size_bytes):
    """Whether so much memory on each card is refused."""
    try:
        torch.empty(size_bytes, dtype=torch.uint8, device="penstock").fill_(1)
        torch.penstock.synchronize()
    except torch.OutOfMemoryError:
        return True
    return False


def main():
    expected, own = losses("cpu"), losses("penstock")
    refused = is_refused(int(sys.argv[2]) << 20) if len(sys.argv) > 2 else None
    again = losses("penstock", 2)
    from penstock.card.device.start import session

    memory = session().statistics()
    say(
        difference=max(abs(a / b - 1) for a, b in zip(own, expected, strict=True)),
        again=max(abs(a / b - 1) for a, b in zip(again, expected, strict=False)),
        refused=refused,
        cards=[str(one.worker) for one in session().stream.links],
        total_bytes=[one.total_bytes for one in memory],
        peak_bytes=[one.peak_bytes for one in memory],
    )


if __name__ == "__main__":
    main()
