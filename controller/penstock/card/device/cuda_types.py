"""`torch.cuda.FloatTensor` and the like: in old programs, a type of numbers on the card."""

from __future__ import annotations

from typing import Any

import torch

_DTYPES = {
    "BFloat16Tensor": torch.bfloat16, "BoolTensor": torch.bool, "ByteTensor": torch.uint8,
    "CharTensor": torch.int8, "DoubleTensor": torch.float64, "FloatTensor": torch.float32,
    "HalfTensor": torch.float16, "IntTensor": torch.int32, "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}  # fmt: skip
_HERE, _CUDAS = "torch.penstock.", "torch.cuda."


class _Kind(type):
    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        is_here = isinstance(instance, torch.Tensor) and instance.device.type == "penstock"
        return is_here and instance.dtype == cls.dtype  # type: ignore[attr-defined]

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        made: torch.Tensor = getattr(torch, cls.__name__)(*args, **kwargs)
        return made.to("penstock")


def of_module() -> dict[str, Any]:
    """What torch.cuda has of them, by name."""
    return {
        name: _Kind(name, (), {"dtype": dtype, "__module__": "torch.cuda"})
        for name, dtype in _DTYPES.items()
    }


def patch() -> None:
    """`tensor.type()` knows them by name and as classes."""
    former: Any = torch.Tensor.type

    def kind(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            name: str = former(self)
            return name.replace(_HERE, _CUDAS, 1)
        if isinstance(dtype, str) and dtype.startswith(_CUDAS):
            dtype = getattr(torch.cuda, dtype.removeprefix(_CUDAS))
        if isinstance(dtype, _Kind):
            return self.to("penstock", dtype.dtype)
        return former(self, dtype, *args, **kwargs)

    torch.Tensor.type = kind
