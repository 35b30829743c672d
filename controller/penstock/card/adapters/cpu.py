"""The CPU as a card: a stand-in for tests, and for machines without accelerators."""

from __future__ import annotations

import os

import torch

from penstock.card.adapters.adapter import Adapter

_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_attention_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class CpuAdapter(Adapter):
    """Processor cores as a card. Each operation is done when it returns."""

    def __init__(self, number: int = 0) -> None:
        del number  # all cards of this kind are the same processors
        self.device = torch.device("cpu")
        # The threads of several cards would wait for each other's processors, spinning.
        torch.set_num_threads(1)

    def synchronize(self) -> None:
        """Returns at once."""

    def memory_bytes(self) -> tuple[int, int]:
        """The machine's memory: free, and in total."""
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")

    def attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor | None,
        is_causal: bool,
        scale: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Torch's fused attention for the CPU."""
        return _attention(query, key, value, 0.0, is_causal, attn_mask=_added(bias, query),
                          scale=scale)  # fmt: skip

    def attention_backward(
        self,
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
        """Its gradients."""
        return _attention_backward(
            gradient, query, key, value, out, logsumexp, 0.0, is_causal,
            attn_mask=_added(bias, query), scale=scale,
        )  # fmt: skip


def _added(bias: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """A mask as numbers that are added to the scores."""
    if bias is None or bias.dtype is not torch.bool:
        return bias
    return torch.zeros_like(bias, dtype=query.dtype).masked_fill_(~bias, -torch.inf)
