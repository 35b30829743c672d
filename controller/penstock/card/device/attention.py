"""Fused attention: what torch's scaled_dot_product_attention calls on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

# Operations of ours, so that they get plans like torch's.
_FORWARD = (
    "attention(Tensor query, Tensor key, Tensor value, Tensor? bias, bool is_causal, float scale) "
    "-> (Tensor, Tensor)"
)
_BACKWARD = (
    "attention_backward(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor? bias, "
    "Tensor out, Tensor logsumexp, bool is_causal, float scale) -> (Tensor, Tensor, Tensor)"
)
SCHEMAS = (_FORWARD, _BACKWARD)
_library = torch.library.Library("penstock", "DEF")
for _schema in SCHEMAS:
    _library.define(_schema)


# Results lie as torch's own inference says, as torch.compile makes views of them by that.
def _attention_meta(query: Any, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.empty_like(query)  # the sizes of heads are the same, see `_fits`
    kind = torch.float64 if query.dtype is torch.float64 else torch.float32
    return out, query.new_empty(query.shape[:-1], dtype=kind)


def _attention_backward_meta(
    _: Any, query: Any, key: Any, value: Any, *__: Any
) -> tuple[torch.Tensor, ...]:
    return tuple(torch.empty_like(one) for one in (query, key, value))


_library.impl("attention", _attention_meta, "Meta")
_library.impl("attention_backward", _attention_backward_meta, "Meta")


def attention_kernels() -> dict[str, Callable[..., Any]]:
    """The kernels by name without "aten::"."""
    return {
        "_scaled_dot_product_fused_attention_overrideable": _forward,
        "_scaled_dot_product_fused_attention_overrideable_backward": _backward,
    }


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Fused where all kinds of cards can, otherwise torch's products of matrices.

    It stands above autograd, as torch asks only its own devices which of the two they want.

    Raises:
        RuntimeError: a mask is given although the attention is causal.
    """
    if dropout_p > 0 or enable_gqa or not _fits(query, key, value, attn_mask):
        return torch.ops.aten._scaled_dot_product_attention_math.default(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale,
            enable_gqa=enable_gqa,
        )[0]  # fmt: skip
    if attn_mask is not None and is_causal:
        raise RuntimeError("Explicit attn_mask should not be set when is_causal=True")
    return torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default(
        query, key, value, attn_mask, 0.0, is_causal, False, scale=scale
    )[0]


def _fits(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> bool:
    three = (query, key, value)
    if any(one.dim() != 4 or not one.numel() for one in three):
        return False
    if not query.dtype.is_floating_point or len({one.dtype for one in three}) > 1:
        return False
    same = all(len({one.shape[k] for one in three}) == 1 for k in (0, 1, 3))
    return same and (mask is None or (mask.dim() in {2, 4} and not mask.requires_grad))


def _scale(scale: float | None, query: torch.Tensor) -> float:
    return query.shape[-1] ** -0.5 if scale is None else scale


def _forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    del dropout_p, return_debug_mask
    out, logsumexp = torch.ops.penstock.attention(
        query, key, value, attn_bias, is_causal, _scale(scale, query)
    )
    none = torch.empty((0,), dtype=torch.int64, device=query.device)
    return (out, logsumexp, none, none, query.shape[2], key.shape[2], none, none, none)


def _backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    grad_input_mask: list[bool],
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    cum_seq_q: torch.Tensor,
    cum_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor | None, ...]:
    del grad_input_mask, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, philox_seed, philox_offset
    return (*torch.ops.penstock.attention_backward(
        grad_out, query, key, value, attn_bias, out, logsumexp, is_causal, _scale(scale, query)
    ), None)  # fmt: skip
