"""`Adapter`: what a worker needs to know of the kind of its card; the base of all kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch

from penstock.card.adapters.attention import attention, attention_backward

if TYPE_CHECKING:
    from collections.abc import Callable


class Adapter(ABC):
    """A card of one kind. Subclasses set the device, and what the kind does otherwise.

    Attributes:
        device: The torch device of this card in its worker.
    """

    device: torch.device

    @abstractmethod
    def synchronize(self) -> None:
        """Returns when all work on the card is done."""

    @abstractmethod
    def memory_bytes(self) -> tuple[int, int]:
        """Bytes of the card's memory: free, and in total."""

    def run(
        self, function: Callable[..., Any], positional: list[Any], named: dict[str, Any]
    ) -> object:
        """Calls one operation on the card. Raises what the operation does."""
        return function(*positional, **named)

    def channel_statistics(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance (without correction) of each channel, which dim 1 counts."""
        dims = [k for k in range(tensor.dim()) if k != 1]
        var, mean = torch.var_mean(tensor, dims, correction=0)
        return mean, var

    def attention(self, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention (`penstock.card.adapters.attention`); kinds with a fused one call that."""
        return attention(*args)

    def attention_backward(self, *args: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The gradients of attention."""
        return attention_backward(*args)
