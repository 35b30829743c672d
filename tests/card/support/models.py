"""Ordinary models, as anybody writes them, small enough for a test."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Residual(nn.Module):
    """Two convolutions with batch normalization, and a way around them."""

    def __init__(self, given: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(given, out, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(out)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(out)
        self.around = nn.Identity()
        if stride != 1 or given != out:
            self.around = nn.Sequential(
                nn.Conv2d(given, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x):
        inner = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(inner)) + self.around(x))


def resnet18(width: int = 64, classes: int = 10) -> nn.Module:
    """ResNet-18 (He et al., 2015); `width` channels in the first of its four stages."""
    stages: list[nn.Module] = []
    given = width
    for stage in range(4):
        out = width << stage
        stages += [Residual(given, out, 1 if stage == 0 else 2), Residual(out, out)]
        given = out
    return nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1), *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(given, classes),
    )  # fmt: skip


class Block(nn.Module):
    """A layer of a GPT: causal attention, then a network for each token."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.network_norm = nn.LayerNorm(width)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.attention(self.attention_norm(x)).chunk(3, -1)
        query, key, value = (
            one.view(batch, length, self.heads, -1).transpose(1, 2) for one in parts
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.network(self.network_norm(x))


class Gpt(nn.Module):
    """A small GPT whose embedding and head share their weights."""

    def __init__(self, words: int, width: int, length: int, layers: int, heads: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Lstm(nn.Module):
    """Two layers of an LSTM and a classifier of the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, 2, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1])


def mlp() -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 5))


def autoencoder() -> nn.Module:
    """A convolution and its transpose."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1)
    )  # fmt: skip


def words_loss(out, target):
    """Cross-entropy of each word."""
    return functional.cross_entropy(out.flatten(0, 1), target.flatten())
