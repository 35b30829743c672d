"""GPT-2 and BERT, and a transformer with a mixture of experts."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads, causal, feed=None):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.feed = feed or nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class GPT2(nn.Module):
    def __init__(self, width=768, heads=12, layers=12, words=50257, length=1024, feed=None):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            Block(width, heads, True, feed() if feed else None) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight  # tied

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Bert(nn.Module):
    """BERT-base with its pooler, and one number a sequence."""

    def __init__(self, width=768, heads=12, layers=12, words=30522, length=512):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, heads, False) for _ in range(layers))
        self.pooler = nn.Linear(width, width)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.words(tokens) + self.places(places))
        for block in self.blocks:
            x = block(x)
        return self.head(torch.tanh(self.pooler(x[:, 0])))


class Experts(nn.Module):
    """Each token goes to the two of eight experts that its router prefers."""

    def __init__(self, width=256, experts=8, chosen=2):
        super().__init__()
        self.chosen = chosen
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(experts)
        )

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        weights, choices = self.router(tokens).softmax(-1).topk(self.chosen, -1)
        result = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token, rank = torch.where(choices == number)
            if token.numel() == 0:
                continue
            mixed = expert(tokens[token]) * weights[token, rank, None]
            result.index_add_(0, token, mixed)
        return result.view_as(x)


def small_gpt():
    return GPT2(width=128, heads=4, layers=4, words=1000, length=64)


def mixture():
    return GPT2(width=256, heads=4, layers=4, words=1000, length=128, feed=Experts)


class BalancedExperts(nn.Module):
    """Experts that take equal numbers of tokens: shapes do not depend on what is chosen."""

    def __init__(self, width=256, experts=8, chosen=2):
        super().__init__()
        self.experts, self.chosen = experts, chosen
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.zeros(experts, width, 4 * width))
        self.down = nn.Parameter(torch.zeros(experts, 4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        tokens = x.reshape(batch * length, width)
        weights, choices = self.router(tokens).softmax(-1).topk(self.chosen, -1)
        order = choices.reshape(-1).argsort()
        places = batch * length * self.chosen // self.experts
        sent = tokens[order // self.chosen].reshape(self.experts, places, width)
        answers = (F.gelu(sent @ self.up) @ self.down).reshape(batch * length * self.chosen, width)
        back = answers[order.argsort()].reshape(batch * length, self.chosen, width)
        return (back * weights[..., None]).sum(1).reshape(batch, length, width)


def balanced_mixture():
    return GPT2(width=256, heads=4, layers=4, words=1000, length=128, feed=BalancedExperts)
