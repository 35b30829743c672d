"""Autocast: which operations work in the lower precision, as on torch's other accelerators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._C import DispatchKey, DispatchKeySet

from penstock.card.device.scan import replaced

if TYPE_CHECKING:
    from collections.abc import Callable

LOWER = (
    "conv1d", "conv1d.padding", "conv2d", "conv2d.padding", "conv3d", "conv3d.padding",
    "conv_tbc", "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input",
    "convolution", "_convolution", "prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm",
    "mv", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell",
    "rnn_tanh_cell", "rnn_relu_cell",
    "scaled_dot_product_attention",
)  # fmt: skip
FLOAT32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal",
    "rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus",
    "layer_norm", "native_layer_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm",
    "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d",
    "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss",
    "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss",
    "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm",
    "logsumexp", "prod", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "sum",
    "sum.dim_IntList", "cross_entropy_loss", "norm.Scalar", "norm.ScalarOpt_dim",
)  # fmt: skip
WIDEST = ("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler",
          "index_put", "tensordot", "scatter_add", "cat", "stack")  # fmt: skip

_own = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
_others = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
_EXCLUDED = DispatchKeySet(DispatchKey.AutocastPrivateUse1)


def register_autocast() -> None:
    """Registers what `torch.autocast("penstock")` changes; all else stays as it is."""
    _others.fallback(torch.library.fallthrough_kernel)
    for names, target in ((LOWER, _lower), (FLOAT32, _float32), (WIDEST, _widest)):
        for name in names:
            operation = _operation(name)
            if operation is not None:
                _own.impl(name, _casting(operation, target))


def _operation(name: str) -> torch._ops.OpOverload | None:
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return None if packet is None else getattr(packet, overload or "default", None)


def _casting(
    operation: torch._ops.OpOverload, target: Callable[[list[torch.Tensor]], torch.dtype | None]
) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        tensors: list[torch.Tensor] = []

        def note(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                tensors.append(value)
            return value

        replaced([*args, kwargs], note)
        dtype = target(tensors)

        def cast(value: Any) -> Any:
            is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
            if is_float and dtype is not None and value.dtype is not torch.float64:
                return value.to(dtype)
            return value

        with torch._C._ExcludeDispatchKeyGuard(_EXCLUDED):
            return operation(*replaced(list(args), cast), **replaced(kwargs, cast))

    return kernel


def _lower(_: list[torch.Tensor]) -> torch.dtype:
    return torch.get_autocast_dtype("penstock")


def _float32(_: list[torch.Tensor]) -> torch.dtype:
    return torch.float32


def _widest(tensors: list[torch.Tensor]) -> torch.dtype | None:
    kinds = {one.dtype for one in tensors}
    return torch.float32 if torch.float32 in kinds else None
