"""Batch normalization over a batch of which each card has a part.

The statistics are those of the whole batch, so that the result is that of one device. Means and
sums of squares of parts are merged by Chan, Golub, LeVeque, "Algorithms for computing the sample
variance", The American Statistician 37 (1983).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from penstock.card.worker.absence import statistics_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.card.adapters import Adapter
    from penstock.card.worker.collectives import Group

_apply = torch.ops.aten.native_batch_norm.default
_backward = torch.ops.aten.native_batch_norm_backward.default


def normalizations(group: Group, adapter: Adapter) -> dict[str, Callable[..., Any]]:
    """The operations by their names without "penstock::"."""

    def batch_norm(
        own: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """native_batch_norm in training: the result, the batch's mean, and 1 / deviation."""
        del training
        count = own.numel() // own.shape[1]
        mean, var = adapter.channel_statistics(own.to(statistics_dtype(own.dtype)))
        # If the card has no memory for the result, the statistics must not have been changed yet.
        room = torch.empty_like(own)
        mean, var, whole = _merge(group, count, mean, var)
        del room
        if running_mean is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        if running_var is not None:
            unbiased = var * (whole / max(whole - 1, 1))
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
        # The CPU's kernel takes weights of the statistics' type, whatever the batch's is.
        weight, bias = _of(mean.dtype, weight), _of(mean.dtype, bias)
        out = _apply(own, weight, bias, mean, var, False, 0.0, eps)[0]
        return out, mean, torch.rsqrt(var + eps)

    def batch_norm_backward(
        gradient: torch.Tensor,
        own: torch.Tensor,
        weight: torch.Tensor | None,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        mean: torch.Tensor,
        deviation: torch.Tensor,
        train: bool,
        eps: float,
        mask: list[bool],
        *,
        count: int,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        """native_batch_norm_backward in training; `count` elements a channel on all cards."""
        del running_mean, running_var, train
        # 1 / deviation² - eps is the variance, so that torch's kernel for evaluation, which takes
        # the statistics as constants, gives the first term and both sums in one pass.
        var = deviation.pow(-2).sub_(eps)
        weight = _of(mean.dtype, weight)
        first, products, sums = _backward(
            gradient, own, weight, mean, var, mean, deviation, False, eps, [True, True, True]
        )
        both = group.sum(torch.stack((sums, products)).to(statistics_dtype(own.dtype))) / count
        both *= deviation if weight is None else deviation * weight
        shape = [1, -1, *([1] * (own.dim() - 2))]
        level, slope = both[0].view(shape), (both[1] * deviation).view(shape)
        if mask[0]:  # from the mean, as a mean far from 0 would take the digits of the rest
            first.sub_(level).addcmul_(own - mean.view(shape), slope, value=-1)
        return (first if mask[0] else None, products if mask[1] else None,
                sums if mask[2] else None)  # fmt: skip

    return {"batch_norm": batch_norm, "batch_norm_backward": batch_norm_backward}


def _merge(
    group: Group, count: int, mean: torch.Tensor, var: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The mean and the variance of all cards' elements, and how many there are.

    Sums of squares are taken from the first card's mean, and not from 0, so that they do not lose
    what a mean far from 0 would hide.
    """
    channels = mean.numel()
    with group.rows(mean, var, mean.new_full((1,), count)) as given:
        rows = given.to(mean.device)
        counts = rows[:, -1].tolist()
        whole = sum(counts)
        weights = rows.new_tensor([[one / whole] for one in counts])
        means = rows[:, :channels]
        both = (weights * rows[:, :-1]).sum(0)
        merged, within = both[:channels].clone(), both[channels:]
        between = (weights * (means - merged).square()).sum(0)
    return merged, within + between, int(whole)


def _of(dtype: torch.dtype, tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.to(dtype)
