"""Random numbers by counting: the same on every kind of card, however a tensor is split.

Each element's number is a hash of the operation's seed and of the element's place in the whole
tensor (SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA
2014), so that a card makes those of its own rows alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from penstock.card.worker.operation import function_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # as signed integers of 64 bits, whose products wrap
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


class Place:
    """Which rows of the whole tensor a card has: `first` is the first along `dim`.

    Attributes:
        size: The sizes of the whole tensor.
    """

    def __init__(self, size: Sequence[int], dim: int, first: int) -> None:
        self.size, self.dim, self.first = size, dim, first


def bits(tensor: torch.Tensor, place: Place, seed: int) -> torch.Tensor:
    """64 random bits for each element of a tensor, as signed integers."""
    z = _index(tensor, place).add_(1).mul_(_GOLDEN).add_(seed)
    z.bitwise_xor_(_shifted(z, 30)).mul_(_FIRST)
    z.bitwise_xor_(_shifted(z, 27)).mul_(_SECOND)
    return z.bitwise_xor_(_shifted(z, 31))


def _shifted(z: torch.Tensor, by: int) -> torch.Tensor:
    return (z >> by).bitwise_and_((1 << (64 - by)) - 1)  # torch shifts the sign in


def _index(tensor: torch.Tensor, place: Place) -> torch.Tensor:
    """The place of each element, counted through the whole tensor in rows."""
    steps = [math.prod(place.size[k + 1 :]) for k in range(len(place.size))]
    own = tensor.shape
    if place.dim == 0 or not own:
        first = place.first * steps[0] if own else 0
        count = tensor.numel()
        return torch.arange(first, first + count, device=tensor.device).view(own)
    index = torch.zeros(own, dtype=torch.int64, device=tensor.device)
    for k, step in enumerate(steps):
        first = place.first if k == place.dim else 0
        along = torch.arange(first, first + own[k], device=tensor.device).mul_(step)
        index += along.view([-1 if j == k else 1 for j in range(len(own))])
    return index


def unit(tensor: torch.Tensor, place: Place, seed: int) -> torch.Tensor:
    """Numbers in [0, 1), as precise as the tensor's type is, but float32 at least."""
    z = bits(tensor, place, seed)
    if tensor.dtype is torch.float64:
        return _shifted(z, 11).to(torch.float64).mul_(2.0**-53)
    return _shifted(z, 40).to(torch.float32).mul_(2.0**-24)


def standard_normal(tensor: torch.Tensor, place: Place, seed: int) -> torch.Tensor:
    """Numbers of the standard normal distribution (Box and Muller, 1958)."""
    z = bits(tensor, place, seed)
    kind = torch.float64 if tensor.dtype is torch.float64 else torch.float32
    angle = z.bitwise_and(0xFFFFFFFF).to(kind).mul_(2 * math.pi * 2.0**-32).cos_()
    length = _shifted(z, 32).add_(1).to(kind).mul_(2.0**-32).log_().mul_(-2).sqrt_()
    return angle.mul_(length)


def positive_unit(tensor: torch.Tensor, place: Place, seed: int) -> torch.Tensor:
    """Numbers in (0, 1]."""
    return 1 - unit(tensor, place, seed)


def random_operations() -> dict[str, Callable[..., object]]:
    """The operations that give random numbers, by name without "penstock::"."""
    own = {name: _placed(fill) for name, fill in _fills().items()}
    return {**own, "seeded": seeded}


def _placed(fill: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def placed(
        own: torch.Tensor, *args: Any, seed: int, size: Sequence[int], dim: int, first: int
    ) -> torch.Tensor:
        return fill(own, Place(size, dim, first), seed, *args)

    return placed


def _fills() -> dict[str, Callable[..., torch.Tensor]]:
    """What fills a tensor with random numbers, by name."""
    return {
        "uniform_": _uniform,
        "normal_": _normal,
        "bernoulli_": _bernoulli,
        "random_": _random,
        "random_to": lambda own, place, seed, high: _random(own, place, seed, 0, high),
        "exponential_": lambda own, place, seed, rate=1.0: own.copy_(
            positive_unit(own, place, seed).log_().div_(-rate)
        ),
        "geometric_": lambda own, place, seed, p: own.copy_(
            positive_unit(own, place, seed).log_().div_(math.log1p(-p)).ceil_().clamp_(min=1)
        ),
        "cauchy_": lambda own, place, seed, median=0.0, sigma=1.0: own.copy_(
            unit(own, place, seed).sub_(0.5).mul_(math.pi).tan_().mul_(sigma).add_(median)
        ),
        "log_normal_": lambda own, place, seed, mean=1.0, std=2.0: own.copy_(
            standard_normal(own, place, seed).mul_(std).add_(mean).exp_()
        ),
    }


def _uniform(
    own: torch.Tensor, place: Place, seed: int, low: float = 0.0, high: float = 1.0
) -> torch.Tensor:
    if own.is_complex():
        raise TypeError("uniform_ fills no complex tensors")
    return own.copy_(unit(own, place, seed).mul_(high - low).add_(low))


def _normal(
    own: torch.Tensor, place: Place, seed: int, mean: float = 0.0, std: float = 1.0
) -> torch.Tensor:
    if own.is_complex():  # real and imaginary parts share the variance
        parts = torch.view_as_real(own)
        pair = Place((*place.size, 2), place.dim, place.first)
        return torch.view_as_complex(_normal(parts, pair, seed, 0.0, std / math.sqrt(2))).add_(mean)
    return own.copy_(standard_normal(own, place, seed).mul_(std).add_(mean))


def _bernoulli(
    own: torch.Tensor, place: Place, seed: int, p: float | torch.Tensor = 0.5
) -> torch.Tensor:
    return own.copy_(unit(own, place, seed).lt_(p))


def _random(
    own: torch.Tensor, place: Place, seed: int, low: int = 0, high: int | None = None
) -> torch.Tensor:
    z = bits(own, place, seed)
    if high is None:
        high = low + _largest(own.dtype) if low == 0 else 2**63 - 1
    span = high - low
    if span > 2**62:
        return own.copy_(z if low < 0 else _shifted(z, 1))
    return own.copy_(_shifted(z, 1).remainder_(span).add_(low))


def _largest(dtype: torch.dtype) -> int:
    """One more than the largest integer of a type that random_ gives without bounds."""
    if dtype.is_floating_point:
        return int(2 ** (-int(math.log2(torch.finfo(dtype).eps)) + 1)) + 1
    return 2 if dtype is torch.bool else torch.iinfo(dtype).max


def seeded(*args: Any, seed: int, operation: str, **named: Any) -> object:
    """An operation of torch's, on the CPU, where its numbers depend on the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    devices = {one.device for one in args if isinstance(one, torch.Tensor)}
    own = [one.cpu() if isinstance(one, torch.Tensor) else one for one in args]
    result = function_of(operation, {})(*own, **named, generator=generator)
    if devices <= {torch.device("cpu")}:
        return result
    for given, changed in zip(args, own, strict=True):
        if isinstance(given, torch.Tensor) and operation.partition(".")[0].endswith("_"):
            given.copy_(changed)
    device = devices.pop()
    if isinstance(result, torch.Tensor):
        return result.to(device)
    return tuple(one.to(device) for one in result)
