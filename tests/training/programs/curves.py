"""Trains ResNet-18 or a small GPT on made data; prints each loss, and a digest of all weights.

Usage: curves.py resnet18|gpt STEPS float32|float64 [WIDTH]. An ordinary program for one GPU.
"""

import math
import sys

import torch
from tests.card.support import models
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PIXELS, CLASSES = 40, 10
WORDS, LENGTH = 96, 32


def images(count, made):
    """Each class has a pattern of its own, under noise."""
    labels = torch.randint(0, CLASSES, (count,), generator=made)
    angles = torch.linspace(0, 6, PIXELS)[None, None, :, None] * (labels[:, None, None, None] + 1)
    noise = torch.randn(count, 3, PIXELS, PIXELS, generator=made)
    return angles.sin() + noise, labels


def words(count, made):
    """Each word follows from the one before, three times of four."""
    chosen = torch.randint(0, WORDS, (count, LENGTH + 1), generator=made)
    by_chance = torch.rand(count, LENGTH + 1, generator=made) < 0.25
    for at in range(1, LENGTH + 1):
        chosen[:, at] = torch.where(by_chance[:, at], chosen[:, at], chosen[:, at - 1] * 7 % WORDS)
    return chosen[:, :-1], chosen[:, 1:]


def schedule(step, steps):
    """Linear at first, then a cosine to a tenth."""
    first = max(steps // 10, 1)
    if step < first:
        return (step + 1) / first
    return 0.55 + 0.45 * math.cos(math.pi * (step - first) / max(steps - first, 1))


def resnet18(steps, width, dtype):
    model = models.resnet18(width, CLASSES).to(device, dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    return train(model, optimizer, images, nn.functional.cross_entropy, (9, 4, 2, 6, 3), steps,
                 dtype)  # fmt: skip


def gpt(steps, width, dtype):
    model = models.Gpt(WORDS, width, LENGTH, 3)
    for one in model.parameters():
        if one.dim() >= 2:
            nn.init.normal_(one, std=0.02)
    model.to(device, dtype)
    decayed = [one for one in model.parameters() if one.dim() >= 2]
    others = [one for one in model.parameters() if one.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, 3e-3, betas=(0.9, 0.95))
    return train(model, optimizer, words, models.words_loss, (9, 5, 1, 6, 2), steps, dtype)


def train(model, optimizer, data, loss_of, batches, steps, dtype):
    schedules = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule(step, steps))
    made = torch.Generator().manual_seed(1)
    for step in range(steps):
        given, target = data(batches[step % len(batches)], made)
        given = given.to(device, dtype if given.is_floating_point() else None)
        loss = loss_of(model(given), target.to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedules.step()
        print("loss", repr(loss.item()), flush=True)
    return sum(one.double().abs().sum().item() for one in model.state_dict().values())


if __name__ == "__main__":
    name, steps, width = sys.argv[1], int(sys.argv[2]), int((sys.argv[4:] or [64])[0])
    torch.manual_seed(0)  # the same weights and data for both types of numbers
    chosen = {"resnet18": resnet18, "gpt": gpt}[name]
    print("weights", repr(chosen(steps, width, getattr(torch, sys.argv[3]))))
