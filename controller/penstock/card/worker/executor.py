"""`Executor`: runs what the front-end sends to one card, in order."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import torch

from penstock.card.frames import FREE, STATISTICS, Kind, unpack_calls, unpack_range, unpack_upload
from penstock.card.worker.composites import composites
from penstock.card.worker.operation import Call, Operation, function_of
from penstock.card.worker.store import PoisonedError, Shape, Store
from penstock_api.v1 import card_ops_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.card.adapters import Adapter
    from penstock.card.worker.collectives import Group

    Reply = Sequence[bytes | memoryview] | None


class Executor:
    """One card's buffers and operations. Not for several threads."""

    def __init__(self, adapter: Adapter, group: Group, report: Callable[[str, str], None]) -> None:
        """Takes the card's adapter, the group of all cards, and what is told of failures.

        `report` gets the name of the operation and what has happened.
        """
        self._adapter = adapter
        self._store = Store(adapter.device)
        self._own = composites(group, self._store, adapter)
        self._operations: dict[int, Operation] = {}
        self._report = report
        self._handlers: dict[int, Callable[[memoryview], Reply]] = {
            Kind.RUN: self._run,
            Kind.DEFINE: self._define,
            Kind.UPLOAD: self._upload,
            Kind.ALLOCATE: self._allocate,
            Kind.DOWNLOAD: self._download,
            Kind.SYNCHRONIZE: self._synchronize,
            Kind.COMPUTE: self._compute,
            Kind.POISONED: self._poisoned,
            Kind.POISON: self._poison,
            Kind.STATISTICS: self._statistics,
        }

    def handle(self, kind: int, body: memoryview) -> Reply:
        """Does what a frame asks for, and returns the parts of the reply if it is a request.

        Raises:
            ValueError: the frame says nothing that this release knows.
            RuntimeError: a request cannot be fulfilled.
        """
        handler = self._handlers.get(kind)
        if handler is None:
            raise ValueError(f"this release knows no frame of kind {kind}")
        return handler(body)

    def _define(self, body: memoryview) -> None:
        message = pb.Operation.FromString(bytes(body))
        self._operations[message.number] = Operation(message, function_of(message.name, self._own))

    def _run(self, body: memoryview) -> None:
        numbers, reals = unpack_calls(body)
        call = Call(self._store)
        call.reals = reals  # type: ignore[assignment]
        at, end, free, operations = 0, len(numbers), self._store.free, self._operations
        while at < end:
            number = numbers[at]
            if number == FREE:
                free(numbers[at + 1])
                at += 2
                continue
            operation = operations[number]
            first_integer = at + 1 + operation.buffer_count
            first_new = first_integer + operation.integer_count
            last = first_new + operation.new_count
            call.buffers = call.integers = numbers  # type: ignore[assignment]
            call.next_buffer, call.next_integer = at + 1, first_integer
            next_real = call.next_real + operation.real_count
            given = numbers[at + 1 : first_integer]
            self._call(operation, call, numbers[first_new:last], given)
            call.next_real = next_real
            at = last

    def _call(
        self, operation: Operation, call: Call, new: Sequence[int], given: Sequence[int]
    ) -> None:
        """One call. If it fails, that is reported, and what it makes or changes is poisoned."""
        try:
            positional, named = operation.arguments(call)
            result = self._adapter.run(operation.function, positional, named)
            if new:
                self._keep(operation, result, new, positional)
        except PoisonedError as error:
            self._store.poison(_written(operation, new, given), str(error))
        except Exception as error:  # noqa: BLE001 - whatever the device says
            # torch lists all of its devices after the first line
            why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            self._store.poison(_written(operation, new, given), f"{operation.name}: {why}")
            self._report(operation.name, why)

    def _keep(
        self, operation: Operation, result: object, new: Sequence[int], arguments: list[Any]
    ) -> None:
        results = result if isinstance(result, (tuple, list)) else (result,)
        flat = [one for each in results for one in (each if isinstance(each, list) else (each,))]
        if operation.copies_results is None:
            operation.copies_results = _shares_storage(flat, arguments)
        numbers = iter(new)
        for tensor, shape in zip(flat, operation.outputs, strict=True):
            if shape is None:
                continue
            self._store.put(
                next(numbers), laid_out(tensor, shape, copy=operation.copies_results), shape
            )

    def _upload(self, body: memoryview) -> None:
        number, _, content = unpack_upload(body)
        target = self._store.allocate(number, len(content))
        if len(content):
            target.copy_(torch.frombuffer(content, dtype=torch.uint8))

    def _allocate(self, body: memoryview) -> None:
        number, size_bytes, _ = unpack_upload(body)
        try:
            self._store.allocate(number, size_bytes)
        except RuntimeError as error:
            self._store.poison([number], f"aten::empty: {error}")
            self._report("aten::empty", f"{type(error).__name__}: {error}")

    def _download(self, body: memoryview) -> Reply:
        number, first, end = unpack_range(body)
        content = self._store.content(number)[first:end].cpu().contiguous()
        return [memoryview(content.numpy())] if len(content) else [b""]

    def _synchronize(self, _: memoryview) -> Reply:
        self._adapter.synchronize()
        return [b""]

    def _compute(self, body: memoryview) -> Reply:
        """One call, whose new buffers' numbers follow the ordinary ones of the call."""
        numbers, reals = unpack_calls(body)
        operation = self._operations[numbers[0]]
        call = Call(self._store)
        call.buffers = call.integers = numbers  # type: ignore[assignment]
        call.reals = reals  # type: ignore[assignment]
        call.next_buffer, call.next_integer = 1, 1 + operation.buffer_count
        positional, named = operation.arguments(call)
        result = self._adapter.run(operation.function, positional, named)
        results = result if isinstance(result, (tuple, list)) else (result,)
        flat = [one for each in results for one in (each if isinstance(each, list) else (each,))]
        new = iter(numbers[1 + operation.buffer_count + operation.integer_count :])
        answer = pb.Results()
        for one in flat:
            self._answer(answer.items.add(), one, new)
        return [answer.SerializeToString()]

    def _answer(self, item: pb.Result, one: object, new: Any) -> None:
        if isinstance(one, torch.Tensor):
            tensor = one.clone(memory_format=torch.contiguous_format)  # it may be a view
            shape = Shape(tensor.dtype, tuple(tensor.shape), tensor.stride(), 0)
            self._store.put(next(new), tensor, shape)
            item.tensor.dtype = str(tensor.dtype).removeprefix("torch.")
            item.tensor.size.extend(shape.size)
            item.tensor.stride.extend(shape.stride)
            item.buffer_bytes = tensor.untyped_storage().nbytes()
        elif isinstance(one, bool):
            item.flag = one
        elif isinstance(one, int):
            item.integer = one
        elif isinstance(one, float):
            item.real = one
        elif one is not None:
            raise TypeError(f"a result of type {type(one).__name__}")

    def _poisoned(self, _: memoryview) -> Reply:
        numbers = self._store.poisoned
        return [struct.pack(f"<{len(numbers)}Q", *numbers)]

    def _poison(self, body: memoryview) -> None:
        self._store.poison(struct.unpack(f"<{len(body) // 8}Q", body), "it is missing on a card")

    def _statistics(self, _: memoryview) -> Reply:
        store = self._store
        return [STATISTICS.pack(len(store), store.used_bytes(), len(self._operations))]


def _written(operation: Operation, new: Sequence[int], given: Sequence[int]) -> list[int]:
    """The buffers that a call makes or changes."""
    return [*new, *(given[i] for i in operation.changed)]


def laid_out(tensor: torch.Tensor, shape: Shape, *, copy: bool) -> torch.Tensor:
    """`tensor` as the front-end was promised it: it may have other strides on this device."""
    if not copy and tensor.stride() == shape.stride and tensor.dtype == shape.dtype:
        size_bytes = tensor.untyped_storage().nbytes()
        if tensor.storage_offset() == 0 and tuple(tensor.shape) == shape.size:
            if size_bytes == _extent(shape) * tensor.element_size():
                return tensor
    out = torch.empty_strided(shape.size, shape.stride, dtype=shape.dtype, device=tensor.device)
    if tuple(tensor.shape) == shape.size:
        out.copy_(tensor)  # otherwise it is a result that nobody uses, and empty on this device
    else:
        out.zero_()
    return out


def _extent(shape: Shape) -> int:
    """How many elements a storage for this shape has."""
    if 0 in shape.size:
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(shape.size, shape.stride, strict=True))


def _shares_storage(results: list[Any], arguments: list[Any]) -> bool:
    """Whether a result is a view of an argument, although the operation is none that makes views."""
    own = {one.untyped_storage().data_ptr() for one in _tensors(arguments)}
    return any(one.untyped_storage().data_ptr() in own for one in _tensors(results))


def _tensors(values: list[Any]) -> list[torch.Tensor]:
    flat = [one for each in values for one in (each if isinstance(each, list) else (each,))]
    return [one for one in flat if isinstance(one, torch.Tensor) and one.numel()]
