"""A model of language: an LSTM over batches of words, truncated in time, with clipped gradients."""

import math
import sys

import torch
from torch import nn


class RNNModel(nn.Module):
    def __init__(self, words, size, layers):
        super().__init__()
        self.encoder = nn.Embedding(words, size)
        self.rnn = nn.LSTM(size, size, layers)
        self.decoder = nn.Linear(size, words)
        self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        self.size, self.layers = size, layers

    def forward(self, given, hidden):
        output, hidden = self.rnn(self.encoder(given), hidden)
        decoded = self.decoder(output)
        return nn.functional.log_softmax(decoded.view(-1, decoded.size(-1)), dim=1), hidden

    def init_hidden(self, batch):
        weight = next(self.parameters())
        return (
            weight.new_zeros(self.layers, batch, self.size),
            weight.new_zeros(self.layers, batch, self.size),
        )


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


device = torch.device(sys.argv[1])
torch.manual_seed(1)
data = torch.randint(0, 60, (41, 14)).to(device)
model = RNNModel(60, 24, 2).to(device)
criterion = nn.NLLLoss()
hidden = model.init_hidden(14)
lr = 2.0
for i in range(0, data.size(0) - 1, 8):
    length = min(8, len(data) - 1 - i)
    source, target = data[i : i + length], data[i + 1 : i + 1 + length].view(-1)
    model.zero_grad()
    hidden = repackage_hidden(hidden)
    output, hidden = model(source, hidden)
    loss = criterion(output, target)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-lr)
    print(f"loss {loss.item():.5f} perplexity {math.exp(loss.item()):.3f}")
model.rnn.flatten_parameters()
