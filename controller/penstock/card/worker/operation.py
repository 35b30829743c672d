"""`Operation`: one operation with its arguments, as a card's worker calls it again and again."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from penstock.card.worker.absence import EXCHANGES
from penstock.card.worker.store import Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.card.worker.store import Store
    from penstock_api.v1 import card_ops_pb2 as pb

    Getter = Callable[["Call"], Any]

MEMORY_FORMATS = {
    str(one): one
    for one in (torch.contiguous_format, torch.channels_last, torch.channels_last_3d,
                torch.preserve_format)
}  # fmt: skip


class Call:
    """The slots of one call: its buffers, integers and floats, taken in order."""

    __slots__ = (
        "buffers",
        "integers",
        "next_buffer",
        "next_integer",
        "next_real",
        "reals",
        "store",
    )

    def __init__(self, store: Store) -> None:
        self.store = store
        self.buffers: list[int] = []
        self.integers: list[int] = []
        self.reals: list[float] = []
        self.next_buffer = self.next_integer = self.next_real = 0


class Operation:
    """How to call one operation: the function, what makes its arguments, and its results' shapes.

    Attributes:
        buffer_count: How many buffers of arguments a call names.
        integer_count: How many integers a call gives.
        real_count: How many floats a call gives.
        new_count: How many buffers a call makes.
        new_bytes: The size of each of them.
        changed: Which of the buffers of arguments a call writes into.
        exchange: What a call exchanges with the other cards; None: nothing.
        default_dtype: What torch's default type must be in a call; None: it does not matter.
    """

    def __init__(self, message: pb.Operation, function: Callable[..., Any]) -> None:
        self.name = message.name
        self.function = function
        arguments = [*message.positional, *(one.value for one in message.named)]
        self._positional = [_getter(one) for one in message.positional]
        self._named = [(one.name, _getter(one.value)) for one in message.named]
        self.outputs = [_output(one) for one in message.outputs]
        kinds = [kind for one in arguments for kind in _slots(one)]
        self.buffer_count = kinds.count("view")
        self.real_count = kinds.count("real")
        self.integer_count = kinds.count("integer")
        self.new_count = sum(shape is not None for shape in self.outputs)
        self.new_bytes = [size_bytes_of(shape) for shape in self.outputs if shape is not None]
        self._views = [view for one in arguments for view in _views(one)]
        self.changed = [i for i, view in enumerate(self._views) if view.is_changed]
        self.exchange = EXCHANGES.get(message.name)
        self.default_dtype = dtype_of(message.default_dtype) if message.default_dtype else None
        self.copies_results: bool | None = None  # known after the first call

    def shapes(self) -> list[Shape]:
        """The shapes of its tensor arguments."""
        return [shape_of(view) for view in self._views]

    def arguments(self, call: Call) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call. Raises `PoisonedError`."""
        positional = [get(call) for get in self._positional]
        return positional, {name: get(call) for name, get in self._named}


def shape_of(view: pb.View) -> Shape:
    """The shape that a message names. Raises `ValueError` if it is none."""
    dtype = getattr(torch, view.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{view.dtype[:40]!r} is no type of elements")  # noqa: TRY004 - a message
    return Shape(dtype, tuple(view.size), tuple(view.stride), view.offset)


def function_of(name: str, own: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    """The function of a name such as "aten::add.Tensor"; those of Penstock are in `own`.

    Raises:
        ValueError: there is none.
    """
    space, _, rest = name.partition("::")
    if space == "penstock":
        if rest in own:
            return own[rest]
        raise ValueError(f"this release has no operation {name[:80]!r}")
    base, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, space), base), overload or "default")
    except (AttributeError, RuntimeError):
        raise ValueError(
            f"torch {torch.__version__} of this card has no operation {name[:80]!r}"
        ) from None


def _output(output: pb.Output) -> Shape | None:
    return shape_of(output.tensor) if output.WhichOneof("kind") == "tensor" else None


def size_bytes_of(shape: Shape) -> int:
    """The size of a storage for this shape."""
    if 0 in shape.size:
        return 0
    last = sum((n - 1) * step for n, step in zip(shape.size, shape.stride, strict=True))
    return (1 + last) * shape.dtype.itemsize


def _views(argument: pb.Argument) -> Iterator[pb.View]:
    if argument.WhichOneof("kind") == "list":
        for one in argument.list.items:
            yield from _views(one)
    elif argument.WhichOneof("kind") == "view":
        yield argument.view


def _slots(argument: pb.Argument) -> Iterator[str]:
    kind = argument.WhichOneof("kind")
    if kind == "list":
        for one in argument.list.items:
            yield from _slots(one)
    elif kind == "scalar_slot":
        yield "integer" if argument.scalar_slot.is_integer else "real"
    elif kind in {"real_slot", "integer_slot", "flag_slot", "view"}:
        yield {"real_slot": "real", "view": "view"}.get(kind, "integer")


def _getter(argument: pb.Argument) -> Getter:
    """What makes an argument from a call's slots. Raises `ValueError` for what is not known."""
    kind = argument.WhichOneof("kind")
    if kind in _SLOTS:
        return _SLOTS[kind]
    if kind == "list":
        items = [_getter(one) for one in argument.list.items]
        return lambda call: [get(call) for get in items]
    if kind == "view":
        return _view_getter(argument.view)
    if kind == "scalar_slot":
        dtype = dtype_of(argument.scalar_slot.dtype)
        get = _integer if argument.scalar_slot.is_integer else _real
        return lambda call: torch.scalar_tensor(get(call), dtype=dtype)
    if kind == "device":
        return lambda call: call.store.device
    value = _constant(argument, kind)
    return lambda _: value


def _constant(argument: pb.Argument, kind: str | None) -> object:
    if kind == "nothing":
        return None
    if kind == "complex":
        return complex(argument.complex.real, argument.complex.imaginary)
    if kind == "dtype":
        return dtype_of(argument.dtype)
    if kind == "layout" and argument.layout == "strided":
        return torch.strided
    if kind == "memory_format" and argument.memory_format in MEMORY_FORMATS:
        return MEMORY_FORMATS[argument.memory_format]
    if kind in {"flag", "integer", "real", "text"}:
        return getattr(argument, kind)
    raise ValueError(f"unknown argument of an operation: {kind}")


def dtype_of(name: str) -> torch.dtype:
    """The type of elements of this name. Raises `ValueError`."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name[:40]!r} is no type of elements")  # noqa: TRY004 - a message
    return dtype


def _view_getter(view: pb.View) -> Getter:
    shape = shape_of(view)
    plain = functools.partial(_view, shape=shape)
    if not (view.is_conjugate or view.is_negative):
        return plain

    def resolved(call: Call) -> torch.Tensor:
        tensor = plain(call)
        tensor = tensor.conj_physical() if view.is_conjugate else tensor
        return tensor.neg() if view.is_negative else tensor

    return resolved


def _view(call: Call, shape: Shape) -> torch.Tensor:
    number = call.buffers[call.next_buffer]
    call.next_buffer += 1
    return call.store.view(number, shape)


def _real(call: Call) -> float:
    call.next_real += 1
    return call.reals[call.next_real - 1]


def _integer(call: Call) -> int:
    call.next_integer += 1
    return call.integers[call.next_integer - 1]


_SLOTS: dict[str | None, Getter] = {
    "real_slot": _real,
    "integer_slot": _integer,
    "flag_slot": lambda call: bool(_integer(call)),
}
