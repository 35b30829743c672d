"""What a function gives on the CPU and on the device, from the same start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from collections.abc import Callable


def on_both(run: Callable[[torch.device], Any], *, rtol: float = 1e-5, atol: float = 1e-6) -> Any:
    """Runs `run` for the CPU and for the device; both must return the same. Returns the CPU's."""
    results = []
    for name in ("cpu", "penstock"):
        torch.manual_seed(7)
        results.append(tree_map(_on_cpu, run(torch.device(name))))
    expected, found = results
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol, equal_nan=True)
    return expected


def drawn(device: torch.device, *size: int, requires_grad: bool = False) -> torch.Tensor:
    """Normal numbers, the same ones on every device."""
    return torch.randn(*size).to(device).requires_grad_(requires_grad)


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value
