"""Trains a small GPT on a text that it makes itself; prints the loss of each step.

Try it with `penstock run --tflops 50 -- python examples/pytorch/words.py`, or with `--device cpu`.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional

WORDS, LENGTH = 97, 32


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.parts, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.parts(self.first(x)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.network(self.second(x))


class Gpt(nn.Module):
    def __init__(self, width, layers, heads=4):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.words.weight
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.layers(self.words(tokens) + self.places(places))))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="penstock")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=28)
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device(options.device)
    text = torch.randint(0, WORDS, (options.batch, LENGTH + 1))
    model = Gpt(options.width, layers=2).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = text.to(device)
    for step in range(options.steps):
        out = model(text[:, :-1])
        loss = functional.cross_entropy(out.flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step + 1}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    main()
