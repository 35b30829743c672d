"""`Signature`: what an operation's schema says of its arguments and results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.card.device.operand import Operand


class Signature:
    """One overload of an operation.

    Attributes:
        operation: The overload.
        name: Its name without the overload, such as "aten::add".
        full_name: Its name with the overload, such as "aten::add.Tensor".
        positional: The names of the arguments that may be given by position.
        target_count: How many arguments are tensors for the results (`out`).
        is_random: Whether it takes a generator of random numbers.
        is_view: Whether its results are views of an argument.
        is_pointwise: Whether it writes each element once, or copies.
    """

    def __init__(self, operation: torch._ops.OpOverload) -> None:
        self.operation = operation
        schema = operation._schema
        self._arguments = schema.arguments
        self.name: str = schema.name
        self.full_name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        self.positional = [one.name for one in schema.arguments if not one.kwarg_only]
        self._changed = {
            one.name for one in schema.arguments if one.alias_info and one.alias_info.is_write
        }
        self.target_count = sum(
            one.kwarg_only and one.name in self._changed for one in schema.arguments
        )
        self._returns = [_aliased(one, schema.arguments) for one in schema.returns]
        self._list_returns = [str(one.type).startswith("List") for one in schema.returns]
        self.is_random = any(one.name == "generator" for one in schema.arguments)
        self.is_pointwise = (
            torch.Tag.pointwise in operation.tags or operation is torch.ops.aten.copy_.default
        )
        self.is_view = any(
            one.alias_info is not None and not one.alias_info.is_write for one in schema.returns
        )

    def named(
        self, args: Sequence[Any], kwargs: dict[str, Any], operands: Iterator[Operand]
    ) -> dict[str, Any]:
        """All arguments by name, with an `Operand` for each tensor of the device."""
        given = {
            **dict(zip(self.positional, (_with(one, operands) for one in args), strict=False)),
            **{name: _with(value, operands) for name, value in kwargs.items()},
        }
        defaults = {
            one.name: one.default_value
            for one in self._arguments
            if one.name not in given and one.has_default_value()
        }
        return {**defaults, **given}

    def changed_tensors(self, args: Sequence[Any], kwargs: dict[str, Any]) -> set[int]:
        """Which of the tensor arguments, counted in order, the operation writes into."""
        return {
            i for i, name in enumerate(self._tensor_names(args, kwargs)) if name in self._changed
        }

    def _tensor_names(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[str]:
        """The argument's name for each tensor of the device."""
        pairs = [*zip(self.positional, args, strict=False), *kwargs.items()]
        return [name for name, value in pairs for _ in _tensors_in(value)]

    def result_aliases(
        self, args: Sequence[Any], kwargs: dict[str, Any], count: int
    ) -> list[int | None]:
        """For each result the tensor argument that it is, or None."""
        names = self._tensor_names(args, kwargs)
        aliases = [names.index(name) if name in names else None for name in self._returns]
        if len(aliases) != count:  # a list of new tensors
            return [None] * count
        return aliases

    def builder(self, count: int) -> Callable[[list[torch.Tensor | None]], object] | None:
        """What makes the return value of a flat list of results; None: the only one is it."""
        if not self._returns:
            return lambda _: None
        if any(self._list_returns):
            return _nested(self._list_returns, count)
        return None if len(self._returns) == 1 else tuple


def _nested(is_list: list[bool], count: int) -> Callable[[list[torch.Tensor | None]], object]:
    if is_list == [True]:
        return list
    length = (count - is_list.count(False)) // is_list.count(True)

    def build(flat: list[torch.Tensor | None]) -> object:
        results: list[object] = []
        at = 0
        for each in is_list:
            results.append(flat[at : at + length] if each else flat[at])
            at += length if each else 1
        return tuple(results)

    return build


def _aliased(one: Any, arguments: Sequence[Any]) -> str | None:
    if one.alias_info is None or not one.alias_info.is_write:
        return None
    for argument in arguments:
        if argument.alias_info and argument.alias_info.before_set == one.alias_info.before_set:
            return argument.name
    return None


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.device.type == "penstock":
            yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors_in(one)


def _with(value: Any, operands: Iterator[Operand]) -> Any:
    if isinstance(value, torch.Tensor):
        return next(operands) if value.device.type == "penstock" else value
    if isinstance(value, (list, tuple)):
        return [_with(one, operands) for one in value]
    return value
