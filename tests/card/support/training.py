"""A small training whose losses show whether a card gave other data."""

import torch
from tests.card.support.sessions import session_of
from torch import nn

from penstock.card.device import start
from penstock.card.device.tensors import buffer_of
from penstock.card.layout import Split


class Training:
    """A network with convolution and batch normalization, step by step, always from one start."""

    def __init__(self, device="penstock"):
        torch.manual_seed(7)
        self.model = nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(1600, 5)
        ).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.002, momentum=0.9)
        self.inputs = torch.randn(32, 3, 12, 12)
        self.targets = torch.randint(5, (32,))
        self.device = device

    def forward(self):
        """The loss of a step."""
        out = self.model(self.inputs.to(self.device))
        several = len(start.session().speeds) > 1
        assert isinstance(buffer_of(out).layout, Split) == several, "the cards share no work"
        return nn.functional.cross_entropy(out, self.targets.to(self.device))

    def backward(self, loss):
        """The rest of the step; returns the loss as a number."""
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def step(self):
        """One step."""
        return self.backward(self.forward())


def losses_of(cards, steps):
    """The losses of undisturbed steps on these cards."""
    with session_of(cards):
        training = Training()
        return [training.step() for _ in range(steps)]
