"""torch.compile of a model and its loss, with autocast and a batch of another size at the end."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(10)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.Flatten(), nn.Linear(288, 4)
).to(device)
optimizer = torch.optim.AdamW(model.parameters(), 0.01, fused=device.type != "cpu")


@torch.compile
def loss_of(images, labels):
    return nn.functional.cross_entropy(model(images), labels)


for step in range(10):
    images, labels = torch.randn(12 if step < 7 else 5, 1, 8, 8), torch.arange(12) % 4
    loss = loss_of(images.to(device), labels[: len(images)].to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("figure", "loss", loss.item())
print("device", device)
