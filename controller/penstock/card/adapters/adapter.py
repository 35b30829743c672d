"""`Adapter`: what a worker needs to know of the kind of its card; the base of all kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.card.adapters.attention import attention, attention_backward

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


class Adapter:
    """A card of one kind. Subclasses set the device, and what the kind does otherwise.

    Attributes:
        device: The torch device of this card in its worker.
    """

    device: torch.device

    def synchronize(self) -> None:
        """Returns when all work on the card is done."""
        raise NotImplementedError

    def memory_bytes(self) -> tuple[int, int]:
        """The card's memory: free, and in total."""
        raise NotImplementedError

    def run(
        self, function: Callable[..., Any], positional: list[Any], named: dict[str, Any]
    ) -> object:
        """Calls one operation on the card. Raises what the operation does."""
        return function(*positional, **named)

    def attention(self, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention (`penstock.card.adapters.attention`); kinds with a fused one call that."""
        return attention(*args)

    def attention_backward(self, *args: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The gradients of attention."""
        return attention_backward(*args)
