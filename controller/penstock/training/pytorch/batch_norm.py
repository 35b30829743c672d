"""Batch normalization with the statistics of the whole batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from penstock.training.pytorch.backward import WholeBatch
    from penstock.training.pytorch.ranks import Ranks

_plain = functional.batch_norm


def install(whole: WholeBatch, ranks: Ranks) -> None:
    """Makes `torch.nn.functional.batch_norm`, which all its modules call, that of all ranks."""

    def batch_norm(
        given: torch.Tensor,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> torch.Tensor:
        if not training or whole.mine is None:
            return _plain(given, running_mean, running_var, weight, bias, training, momentum, eps)
        return normalized(
            ranks, given, running_mean, running_var, weight, bias, momentum, eps,
            counts=whole.mine.rows > 0,
        )  # fmt: skip

    functional.batch_norm = batch_norm


def normalized(
    ranks: Ranks,
    given: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    momentum: float,
    eps: float,
    *,
    counts: bool,
) -> torch.Tensor:
    """Normalizes (samples, channels, ...) over the samples of all ranks.

    `counts`: whether this rank's samples do.

    Raises:
        ValueError: a channel has a single value, as torch says as well.
    """
    shape = [1, -1] + [1] * (given.dim() - 2)
    out, mean, var, count = _Normalize.apply(given, ranks, eps, counts)
    if count <= 1:
        raise ValueError("Expected more than 1 value per channel when training")
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            unbiased = var * (count / (count - 1))
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    if weight is not None:
        out = out * weight.view(shape)
    if bias is not None:
        out = out + bias.view(shape)
    return out


class _Normalize(torch.autograd.Function):
    """(x - mean) / sqrt(var + eps) by channels, with mean and variance of all ranks.

    Backward as Ioffe and Szegedy, 2015, section 3: with n values a channel,
    dx = (dy - mean(dy) - y mean(dy y)) / sqrt(var + eps).
    """

    @staticmethod
    def forward(
        ctx: Any, given: torch.Tensor, ranks: Ranks, eps: float, counts: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
        dims = [0, *range(2, given.dim())]
        shape = [1, -1] + [1] * (given.dim() - 2)
        wide = given.double() if given.dtype == torch.float64 else given.float()
        mine = given.numel() // max(1, given.shape[1]) if counts else 0
        mean = wide.mean(dims)
        squares = (wide - mean.view(shape)).square().sum(dims)
        said = torch.cat([mean, squares, mean.new_tensor([float(mine)])])
        all_ = ranks.stack(said)
        each, channels = all_[:, -1:], given.shape[1]
        count = int(each.sum())
        means = all_[:, :channels]
        mean = (each * means).sum(0) / max(count, 1)
        apart = each * (means - mean).square()
        of_counted = torch.where(each > 0, all_[:, channels:-1], 0)
        var = (of_counted + apart).sum(0) / max(count, 1)
        scale = (var + eps).rsqrt()
        out = (wide - mean.view(shape)) * scale.view(shape)
        ctx.save_for_backward(out, scale)
        ctx.ranks, ctx.count, ctx.dtype, ctx.counts = ranks, count, given.dtype, counts
        ctx.mark_non_differentiable(mean, var)
        return out.to(given.dtype), mean, var, count

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> tuple[Any, ...]:
        out, scale = ctx.saved_tensors
        dims = [0, *range(2, out.dim())]
        shape = [1, -1] + [1] * (out.dim() - 2)
        wide = gradient.to(out.dtype)
        sums = torch.stack([wide.sum(dims), (wide * out).sum(dims)])
        ctx.ranks.add_up([sums])
        if not ctx.counts:
            return torch.zeros_like(gradient), None, None, None
        means = sums / ctx.count
        back = (wide - means[0].view(shape) - out * means[1].view(shape)) * scale.view(shape)
        return back.to(ctx.dtype), None, None, None
