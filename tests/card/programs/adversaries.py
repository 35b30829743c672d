"""A generator of images and a discriminator that learn from each other (DCGAN)."""

import sys

import torch
from torch import nn, optim

device = torch.device(sys.argv[1])
torch.manual_seed(1)


def weights_init(m):
    name = m.__class__.__name__
    if name.find("Conv") != -1:
        torch.nn.init.normal_(m.weight, 0.0, 0.02)
    elif name.find("BatchNorm") != -1:
        torch.nn.init.normal_(m.weight, 1.0, 0.02)
        torch.nn.init.zeros_(m.bias)


generator = nn.Sequential(
    nn.ConvTranspose2d(10, 16, 4, 1, 0, bias=False), nn.BatchNorm2d(16), nn.ReLU(True),
    nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(True),
    nn.ConvTranspose2d(8, 3, 4, 2, 1, bias=False), nn.Tanh())  # fmt: skip
discriminator = nn.Sequential(
    nn.Conv2d(3, 8, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(8, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(16, 1, 4, 1, 0, bias=False), nn.Sigmoid())  # fmt: skip
generator.apply(weights_init)
discriminator.apply(weights_init)
generator.to(device)
discriminator.to(device)
criterion = nn.BCELoss()
optimizer_d = optim.Adam(discriminator.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizer_g = optim.Adam(generator.parameters(), lr=0.0002, betas=(0.5, 0.999))
for _ in range(3):
    real = torch.randn(14, 3, 16, 16).to(device)
    noise = torch.randn(14, 10, 1, 1).to(device)
    discriminator.zero_grad()
    label = torch.full((14,), 1.0, dtype=real.dtype, device=device)
    output = discriminator(real).view(-1)
    loss_real = criterion(output, label)
    loss_real.backward()
    fake = generator(noise)
    label.fill_(0.0)
    loss_fake = criterion(discriminator(fake.detach()).view(-1), label)
    loss_fake.backward()
    optimizer_d.step()
    generator.zero_grad()
    label.fill_(1.0)
    loss_g = criterion(discriminator(fake).view(-1), label)
    loss_g.backward()
    optimizer_g.step()
    print(
        f"{loss_real.item() + loss_fake.item():.4f} {loss_g.item():.4f} {output.mean().item():.4f}"
    )
