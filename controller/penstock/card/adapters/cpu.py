"""The CPU as a card: a stand-in for tests, and for machines without accelerators."""

from __future__ import annotations

import contextlib
import ctypes
import os

import torch

from penstock.card.adapters.adapter import Adapter
from penstock.model import PenstockError

_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_attention_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # <malloc.h> of glibc


class CpuAdapter(Adapter):
    """Processor cores as a card. Each operation is done when it returns."""

    def __init__(self, number: int = 0) -> None:
        """Opens the processors. Raises `PenstockError` if `number` is not 0."""
        if number:
            raise PenstockError(
                f"there is no cpu:{number}", "all cards of this kind are the same processors",
                "write cpu, several times for several cards",
            )  # fmt: skip
        self.device = torch.device("cpu")
        # The threads of several cards would wait for each other's processors, spinning.
        torch.set_num_threads(1)
        _keep_freed_memory()

    def synchronize(self) -> None:
        """Returns at once."""

    def memory_bytes(self) -> tuple[int, int]:
        """The machine's memory: free, and in total."""
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")

    def channel_statistics(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Torch's own for batch normalization, four times as fast as its variance of dims."""
        mean, var = torch.ops.aten.batch_norm_update_stats.default(tensor, None, None, 0.0)
        return mean, var

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


def _keep_freed_memory() -> None:
    """Keeps freed memory for the next tensors, as torch's allocators of accelerators do.

    A training frees and takes the same sizes in each step. If each of them came from the kernel
    anew, its pages would have to be zeroed again, which took a fifth of the time of a ResNet.
    """
    with contextlib.suppress(AttributeError):  # another library than glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)
        mallopt(_M_ARENA_MAX, 1)
