"""An ordinary program with two models and two optimizers."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
samples = DataLoader(TensorDataset(torch.randn(96, 5)), batch_size=16, shuffle=True)
maker = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 5))
judge = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
of_maker = torch.optim.SGD(maker.parameters(), 0.1)
of_judge = torch.optim.SGD(judge.parameters(), 0.1)
for epoch in range(2):
    for (real,) in samples:
        made = maker(real[:, :3])
        right = functional.binary_cross_entropy_with_logits
        wrong = right(judge(real), torch.ones(len(real), 1))
        wrong = wrong + right(judge(made.detach()), torch.zeros(len(real), 1))
        of_judge.zero_grad()
        wrong.backward()
        of_judge.step()
        fooled = right(judge(made), torch.ones(len(real), 1))
        of_maker.zero_grad()
        fooled.backward()
        of_maker.step()
        print(epoch, f"{wrong.item():.9f} {fooled.item():.9f}")
