"""Trains a small ResNet on images that it makes itself; prints the loss of each step.

Try it with `penstock run --tflops 50 -- python examples/pytorch/images.py`, or with `--device cpu`.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional


class Residual(nn.Module):
    def __init__(self, given, out, stride=1):
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(given, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.around = nn.Conv2d(given, out, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        return functional.relu(self.inner(x) + self.around(x))


def make_model(width, classes):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        Residual(width, width), Residual(width, 2 * width, 2), Residual(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes),
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="penstock")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=28)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--double", action="store_true", help="compute in float64: how a batch "
                        "is split changes no digit that is printed")  # fmt: skip
    options = parser.parse_args()
    if options.double:
        torch.set_default_dtype(torch.float64)

    torch.manual_seed(0)
    device = torch.device(options.device)
    images = torch.randn(options.batch, 3, 32, 32)
    classes = torch.arange(options.batch) % 10
    model = make_model(options.width, 10).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images, classes = images.to(device), classes.to(device)
    for step in range(options.steps):
        loss = functional.cross_entropy(model(images), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step + 1}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    main()
