"""A training that goes on from its checkpoint, which it writes after each step.

resuming.py CHECKPOINT STEPS: prints each step's loss.
"""

import pathlib
import sys

import torch

file, steps = sys.argv[1], int(sys.argv[2])
torch.manual_seed(1)
data = torch.randn(64, 8)
target = data.sum(1, keepdim=True).sin()
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
model.to("cuda")
optimizer = torch.optim.Adam(model.parameters(), 0.01)
first = 0
if pathlib.Path(file).exists():
    kept = torch.load(file)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    first = kept["step"]
for step in range(first, steps):
    rows = torch.randperm(64, generator=torch.Generator().manual_seed(step))[:24]
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(data[rows].to("cuda")), target[rows].to("cuda"))
    loss.backward()
    optimizer.step()
    print(step, loss.item(), flush=True)  # comes again if what follows is not reached
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1},
        file + ".new",
    )
    pathlib.Path(file + ".new").replace(file)
