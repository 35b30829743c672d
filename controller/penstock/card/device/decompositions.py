"""Operations made of others above autograd: torch would take a kernel of CUDA's for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.card.device.attention import scaled_dot_product_attention

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


def decompositions() -> dict[str, Callable[..., Any]]:
    """The operations by name without "aten::"; gradients flow through what they are made of."""
    return {
        "_thnn_fused_lstm_cell": _lstm_cell,
        "_thnn_fused_gru_cell": _gru_cell,
        "scaled_dot_product_attention": scaled_dot_product_attention,
    }


def _lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cell: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One step of an LSTM; gates in torch's order: input, forget, cell, output."""
    gates = _biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias)
    enter, forget, new, leave = gates.chunk(4, 1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * cell.tanh(), cell, gates


def _gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hidden: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of a GRU; gates in torch's order: reset, update, new."""
    own = _biased(input_gates, input_bias).chunk(3, 1)
    past = _biased(hidden_gates, hidden_bias).chunk(3, 1)
    reset = (own[0] + past[0]).sigmoid()
    update = (own[1] + past[1]).sigmoid()
    new = (own[2] + reset * past[2]).tanh()
    return new + update * (hidden - new), input_gates


def _biased(gates: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return gates if bias is None else gates + bias
