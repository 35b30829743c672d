"""An ordinary program for one machine: convolutions, batch norm, AdamW, clipping, a schedule."""

import argparse

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--micro", type=int, default=1, help="batches of a step")
    parser.add_argument("--no-eval", action="store_true")
    parser.add_argument("--count", action="store_true", help="print samples instead of losses")
    options = parser.parse_args()
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    images = torch.randn(330, 1, 12, 12)
    classes = (images.sum((1, 2, 3)) > 0).long() + 2 * (images[:, 0, :6].sum((1, 2)) > 0).long()
    train = DataLoader(
        TensorDataset(images[:230], classes[:230]),
        batch_size=32,
        shuffle=True,
        num_workers=options.workers,
    )
    test = DataLoader(TensorDataset(images[230:], classes[230:]), batch_size=50)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(600, 4),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    for epoch in range(2):
        model.train()
        for i, (given, wanted) in enumerate(train):
            loss = functional.cross_entropy(model(given), wanted)
            (loss / options.micro).backward()
            if (i + 1) % options.micro == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
            print(epoch, i, len(given) if options.count else f"{loss.item():.9f}")
        right = 0
        if not options.no_eval:
            model.eval()
        for given, wanted in test:
            right += (model(given).argmax(1) == wanted).sum().item()
        print("right", right)
        schedule.step()
    print("parameters", f"{sum(one.abs().sum().item() for one in model.parameters()):.9f}")


main()
