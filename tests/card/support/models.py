"""Ordinary models, as anybody writes them, small enough for a test."""

from __future__ import annotations

import torch
from tests.estimate_torch.models import resnet
from torch import nn
from torch.nn import functional


def resnet18(width: int = 64, classes: int = 10) -> nn.Module:
    """ResNet-18; `width` channels in the first of its four stages."""
    return resnet.resnet18(classes, width)


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
