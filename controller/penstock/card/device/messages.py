"""Messages that tell a card how to call an operation (card_ops.proto)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from penstock.card.layout import Cut
from penstock_api.v1 import card_ops_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.card.device.decision import Decision, Question, Use
    from penstock.card.device.inference import Meta
    from penstock.card.layout import Layout


class Slots:
    """What differs by card in the arguments and results of one operation."""

    def __init__(
        self,
        card: int,
        question: Question,
        decision: Decision,
        layouts: Sequence[Layout],
        outputs: Sequence[tuple[Meta, Use] | None],
    ) -> None:
        self.card = card
        self.decision = decision
        self.outputs = outputs
        self.is_random = question.is_random
        self._operands = iter(zip(question.operands, decision.uses, layouts, strict=True))

    def fill_view(self, view: pb.View) -> None:
        """Describes the next tensor argument."""
        from penstock.card.device.planner import local_view

        operand, use, layout = next(self._operands)
        size, stride, offset = local_view(operand, use, layout, self.card)
        _fill(view, operand.dtype, size, stride, offset)
        view.is_changed = operand.is_changed
        view.is_conjugate, view.is_negative = operand.is_conj, operand.is_neg


def operation_message(
    name: str, names: Sequence[str], args: Sequence[Any], kwargs: dict[str, Any], slots: Slots
) -> pb.Operation:
    """How one card calls an operation; `names` are those of its positional arguments."""
    default = dtype_name(torch.get_default_dtype())
    message = pb.Operation(name=name, default_dtype=default)
    own = {key: values[slots.card] for key, values in slots.decision.replaced.items()}
    for key, value in zip(names, args, strict=False):
        _argument(message.positional.add(), own.pop(key, value), slots)
    for key, value in kwargs.items():
        if key != "generator":
            _argument(message.named.add(name=key).value, own.pop(key, value), slots)
    for key, value in own.items():  # it was left out
        _argument(message.named.add(name=key).value, value, slots)
    if slots.is_random:
        message.named.add(name="seed").value.integer_slot.SetInParent()
    for output in slots.outputs:
        _output(message.outputs.add(), output, slots.card)
    return message


def _output(output: pb.Output, described: tuple[Meta, Use] | None, card: int) -> None:
    if described is None:
        output.ignored.SetInParent()
        return
    meta, use = described
    size = meta.size
    if isinstance(use, Cut):
        size = (*size[: use.dim], use.rows[card], *size[use.dim + 1 :])
    _fill(output.tensor, meta.dtype, size, meta.stride, 0)


def _fill(
    view: pb.View, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int], offset: int
) -> None:
    view.dtype = dtype_name(dtype)
    view.size.extend(size)
    view.stride.extend(stride)
    view.offset = offset


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a type of elements, without "torch."."""
    return str(dtype).removeprefix("torch.")


def _argument(argument: pb.Argument, value: Any, slots: Slots) -> None:
    """Describes one argument. Raises `TypeError` for what no card could take."""
    if isinstance(value, torch.Tensor):
        _tensor(argument, value, slots)
    elif value is None or isinstance(value, torch.device):
        (argument.nothing if value is None else argument.device).SetInParent()
    elif isinstance(value, bool):
        argument.flag = value
    elif isinstance(value, int):
        argument.integer = value
    elif isinstance(value, float):
        argument.real_slot.SetInParent()
    elif isinstance(value, (list, tuple)):
        argument.list.SetInParent()
        for one in value:
            _argument(argument.list.items.add(), one, slots)
    else:
        _constant(argument, value)


def _tensor(argument: pb.Argument, value: torch.Tensor, slots: Slots) -> None:
    if value.device.type == "penstock":
        slots.fill_view(argument.view)
        return
    # A tensor without dimensions on the CPU: its value comes with each call.
    if is_wrapped_number(value):
        kind = "real_slot" if value.dtype is torch.float64 else "integer_slot"
        if value.dtype is torch.bool:
            argument.flag_slot = True
        else:
            getattr(argument, kind).SetInParent()
        return
    argument.scalar_slot.dtype = dtype_name(value.dtype)
    argument.scalar_slot.is_integer = not value.dtype.is_floating_point


def _constant(argument: pb.Argument, value: Any) -> None:
    if isinstance(value, torch.dtype):
        argument.dtype = dtype_name(value)
    elif isinstance(value, str):
        argument.text = value
    elif isinstance(value, complex):
        argument.complex.real, argument.complex.imaginary = value.real, value.imag
    elif isinstance(value, torch.memory_format):
        argument.memory_format = str(value)
    elif value is torch.strided:
        argument.layout = "strided"
    else:
        raise TypeError(f"device penstock takes no argument of type {type(value).__name__}")


_PROBES = {
    torch.float64: torch.zeros((), dtype=torch.float32),
    torch.int64: torch.zeros((), dtype=torch.int8),
}


def is_wrapped_number(tensor: torch.Tensor) -> bool:
    """Whether a tensor without dimensions was a Python number, which does not widen results.

    torch does not say so itself, but its rules of promotion do.
    """
    if tensor.dtype is torch.bool:
        return True  # it never widens
    probe = _PROBES.get(tensor.dtype)
    return probe is not None and torch.result_type(probe, tensor) is probe.dtype
