"""Attention by products of matrices, for kinds of cards that have no fused one."""

from __future__ import annotations

import torch


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    is_causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(query @ key^T * scale + bias) @ value, and the logarithms of the softmax's sums.

    Shapes: query (batch, heads, length, width), key and value (batch, heads, other length, width).
    """
    scores = _scores(query, key, bias, is_causal, scale)
    logsumexp = scores.logsumexp(-1)
    return (scores - logsumexp.unsqueeze(-1)).exp().to(value.dtype) @ value, logsumexp


def attention_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    is_causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of query, key and value."""
    scores = _scores(query, key, bias, is_causal, scale)
    weights = (scores - logsumexp.unsqueeze(-1)).exp()
    inner = (gradient.to(weights.dtype) * out).sum(-1, keepdim=True)
    slope = weights * (gradient @ value.mT - inner) * scale
    slope = slope.to(query.dtype)
    return slope @ key, slope.mT @ query, weights.to(value.dtype).mT @ gradient


def _scores(
    query: torch.Tensor,
    key: torch.Tensor,
    bias: torch.Tensor | None,
    is_causal: bool,
    scale: float,
) -> torch.Tensor:
    scores = (query @ key.mT) * scale
    if scores.dtype is not torch.float64:
        scores = scores.float()
    if bias is not None:
        scores = (
            scores.masked_fill(~bias, -torch.inf) if bias.dtype is torch.bool else scores + bias
        )
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    return scores
