"""Random numbers of the device: each operation draws one seed from a generator of the program's.

The generator is one of torch's for the CPU: seeds, states and forks of it work as they do there.
The cards make the numbers of an operation from its seed (`penstock.card.worker.random`).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_seeds = torch.empty((), dtype=torch.int64)
default_generator = torch.Generator()
# The generators of the device by the address of what torch has of them: it passes them on to
# kernels without their Python class.
own_generators: weakref.WeakValueDictionary[int, torch.Generator] = weakref.WeakValueDictionary()


def draw_seed(generator: torch.Generator | None) -> int:
    """A seed for one operation. Raises `RuntimeError` for a generator of another device."""
    if generator is not None and generator._cdata not in own_generators:
        raise RuntimeError(
            f"Expected a 'penstock' device type for generator but found '{generator.device.type}'"
        )
    return _seeds.random_(generator=generator or default_generator).item()


def random_kernels() -> dict[str, Callable[..., Any]]:
    """Operations that are made of others which fill a tensor, by name without "aten::"."""
    return {
        "normal.Tensor_Tensor": _normal,
        "normal.Tensor_float": _normal,
        "normal.float_Tensor": _normal,
        "randperm.generator_out": _randperm_out,
        "randperm.out": _randperm_out,
        "multinomial": _multinomial,
        "native_dropout": _native_dropout,
    }


def _normal(mean: Any, std: Any = 1.0, generator: torch.Generator | None = None) -> torch.Tensor:
    like = mean if isinstance(mean, torch.Tensor) else std
    size = torch.broadcast_shapes(*(one.shape for one in (mean, std)
                                    if isinstance(one, torch.Tensor)))  # fmt: skip
    drawn = torch.empty(size, dtype=like.dtype, device=like.device).normal_(generator=generator)
    return drawn.mul_(std).add_(mean)


def _randperm_out(
    n: int, generator: torch.Generator | None = None, *, out: torch.Tensor
) -> torch.Tensor:
    keys = torch.empty(n, dtype=torch.int64, device=out.device).random_(generator=generator)
    return out.resize_(n).copy_(keys.argsort())


def _multinomial(
    weights: torch.Tensor,
    count: int,
    replacement: bool = False,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    if count <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if not replacement and count > weights.shape[-1]:
        raise RuntimeError(
            "cannot sample n_sample > prob_dist.size(-1) samples without replacement"
        )
    weights = weights.float() if weights.dtype is not torch.float64 else weights
    if not replacement:  # exponential clocks: the first to ring are a sample without replacement
        clocks = torch.empty_like(weights).exponential_(generator=generator)
        return (weights / clocks).topk(count, dim=-1).indices
    edges = weights.cumsum(-1)
    drawn = torch.empty((*weights.shape[:-1], count), dtype=weights.dtype, device=weights.device)
    drawn.uniform_(generator=generator).mul_(edges[..., -1:])
    return torch.searchsorted(edges, drawn, right=True).clamp_(max=weights.shape[-1] - 1)


def _native_dropout(
    own: torch.Tensor, p: float, train: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    if train is False or p == 0:
        return own.clone(), torch.ones_like(own, dtype=torch.bool)
    mask = torch.empty_like(own, dtype=torch.bool).bernoulli_(1 - p)
    return own * mask * (0.0 if p == 1 else 1 / (1 - p)), mask
