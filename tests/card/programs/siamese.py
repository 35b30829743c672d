"""Two images of one class or of two: a network applied twice, and a margin between its results."""
# ruff: noqa: N812 - written as users write programs

import sys

import torch
from torch import nn, optim
from torch.nn import functional as F

device = torch.device(sys.argv[1])
torch.manual_seed(1)


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(4)
        )
        self.fc = nn.Sequential(nn.Linear(2 * 8 * 16, 16), nn.ReLU(inplace=True), nn.Linear(16, 1))

    def one(self, x):
        return self.body(x).view(x.size(0), -1)

    def forward(self, a, b):
        one, other = self.one(a), self.one(b)
        return torch.sigmoid(self.fc(torch.cat((one, other), 1))).squeeze(), one, other


model = Siamese().to(device)
optimizer = optim.RMSprop(model.parameters(), lr=0.002)
for _ in range(3):
    a, b = torch.randn(14, 1, 10, 10).to(device), torch.randn(14, 1, 10, 10).to(device)
    target = torch.randint(0, 2, (14,)).float().to(device)
    optimizer.zero_grad()
    out, one, other = model(a, b)
    distance = F.pairwise_distance(one, other)
    contrast = torch.mean(
        target * distance**2 + (1 - target) * torch.clamp(3 - distance, min=0) ** 2
    )
    loss = F.binary_cross_entropy(out, target) + 0.1 * contrast
    loss = loss + F.triplet_margin_loss(one, other, one.flip(0))
    loss.backward()
    optimizer.step()
    correct = torch.where(out > 0.5, 1, 0).eq(target).sum().item()
    print(f"{loss.item():.5f} {correct} {F.cosine_similarity(one, other).mean().item():.5f}")
