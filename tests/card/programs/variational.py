"""A variational autoencoder whose noise is drawn on the CPU, so that it is the same everywhere."""
# ruff: noqa: N812 - written as users write programs

import sys

import torch
from torch import nn, optim
from torch.nn import functional as F


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(64, 40), nn.Linear(40, 6), nn.Linear(40, 6)
        self.fc3, self.fc4 = nn.Linear(6, 40), nn.Linear(40, 64)

    def forward(self, x):
        h1 = F.relu(self.fc1(x.view(-1, 64)))
        mu, logvar = self.fc21(h1), self.fc22(h1)
        std = torch.exp(0.5 * logvar)
        z = mu + torch.randn(std.shape).to(std) * std
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    bce = F.binary_cross_entropy(recon_x, x.view(-1, 64), reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


device = torch.device(sys.argv[1])
torch.manual_seed(1)
model = VAE().to(device)
optimizer = optim.Adam(model.parameters(), lr=1e-3)
total = 0
for step in range(4):
    data = torch.rand(14, 1, 8, 8).to(device)
    optimizer.zero_grad()
    recon, mu, logvar = model(data)
    loss = loss_function(recon, data, mu, logvar)
    loss.backward()
    total += loss.item()
    optimizer.step()
    print(f"{step} {loss.item() / len(data):.4f} {total:.2f}")
with torch.no_grad():
    model.eval()
    print(f"{torch.cat([data[:4], recon.view(14, 1, 8, 8)[:4]]).cpu().mean().item():.4f}")
