"""Digits of noise, learned by three layers in PyTorch: prints the loss of each step."""

import sys

import torch
import torch.nn.functional as F
from mlp_data import STEPS, batches, weights

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
layers = []
for weight, bias in weights():
    layer = torch.nn.Linear(*weight.shape)
    layer.weight.data, layer.bias.data = torch.tensor(weight.T.copy()), torch.tensor(bias)
    layers += [layer, torch.nn.ReLU()]
model = torch.nn.Sequential(*layers[:-1]).to(device)
if "sgd" in sys.argv:
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
else:
    optimizer = torch.optim.Adam(model.parameters(), 0.002)
for x, y in batches(STEPS):
    optimizer.zero_grad()
    value = F.cross_entropy(model(torch.tensor(x).to(device)), torch.tensor(y).to(device))
    value.backward()
    optimizer.step()
    print(f"{value.item():.7f}", flush=True)
