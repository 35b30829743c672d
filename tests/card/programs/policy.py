"""A policy that learns from rewards (REINFORCE); actions are drawn on the CPU."""
# ruff: noqa: B905 - written as users write programs

import sys
from collections import deque

import torch
from torch import nn, optim
from torch.distributions import Categorical

device = torch.device(sys.argv[1])
torch.manual_seed(1)
starts = torch.randn(3, 4)
policy = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3), nn.Softmax(dim=-1)).to(device)
optimizer = optim.Adam(policy.parameters(), lr=1e-2)
for episode in range(3):
    state, log_probs, rewards = starts[episode], [], []
    for step in range(6):
        probs = policy(state.unsqueeze(0).to(device))
        m = Categorical(probs)
        action = torch.tensor([(episode + step) % 3], device=device)
        assert 0 <= m.sample().item() < 3
        log_probs.append(m.log_prob(action))
        rewards.append(float(state[action.item()]))
        state = torch.roll(state, action.item()) * 0.9
    returns, total = deque(), 0
    for r in rewards[::-1]:
        total = r + 0.99 * total
        returns.appendleft(total)
    returns = torch.tensor(list(returns)).to(device)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    loss = torch.cat([-p * r for p, r in zip(log_probs, returns)]).sum() - 0.01 * m.entropy().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{episode} {loss.item():.5f} {probs.max().item():.5f}")
