"""Trains a small network on "cuda": `train.py STEPS PAUSE_S`; prints each loss to its last bit."""

import sys
import time

import torch
from torch import nn

steps, pause_s = int(sys.argv[1]), float(sys.argv[2])
torch.manual_seed(7)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, 2), nn.ReLU(),
    nn.Flatten(), nn.Linear(16 * 14 * 14, 10),
).to("cuda")  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
images, classes = torch.randn(48, 3, 32, 32), torch.randint(10, (48,))
for step in range(steps):
    loss = nn.functional.cross_entropy(model(images.to("cuda")), classes.to("cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step + 1}: loss {loss.item().hex()}", flush=True)
    time.sleep(pause_s)
