"""`Executor`: runs what the front-end sends to one card, in order."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import torch

from penstock.card.frames import (
    FREE,
    Kind,
    Statistics,
    pack_clock,
    pack_figures,
    pack_numbers,
    pack_rates,
    pack_statistics,
    unpack_calls,
    unpack_numbers,
    unpack_poison,
    unpack_probe,
    unpack_range,
    unpack_trace,
    unpack_upload,
)
from penstock.card.worker.composites import composites
from penstock.card.worker.exchange import AbsentError
from penstock.card.worker.operation import Call, Operation, function_of, size_bytes_of
from penstock.card.worker.probe import operations_per_second
from penstock.card.worker.recorder import Recorder
from penstock.card.worker.store import PoisonedError, Shape, Store
from penstock_api.v1 import card_ops_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.card.adapters import Adapter
    from penstock.card.worker.collectives import Group

    Reply = Sequence[bytes | memoryview] | None


class Executor:
    """One card's buffers and operations. Not for several threads."""

    def __init__(
        self,
        adapter: Adapter,
        group: Group,
        report: Callable[[str, Exception], None],
        send_trace: Callable[[bytes], None],
        most_bytes: int | None = None,
    ) -> None:
        """Takes the card's adapter, the group of all cards, and what is told of failures.

        `report` gets the name of the operation and the exception. `send_trace` gets events of a
        trace, as the body of TRACED. `most_bytes`: a simulated limit of the card's memory.
        """
        self._adapter = adapter
        self._group = group
        self._most_bytes = most_bytes
        self._store = Store(adapter.device, most_bytes)
        self._own = composites(group, self._store, adapter)
        self._operations: dict[int, Operation] = {}
        self._default_dtype = torch.get_default_dtype()
        self._report = report
        self._meter = group.meter
        self._send_trace = send_trace
        self._handlers: dict[int, Callable[[memoryview], Reply]] = {
            Kind.RUN: self._run,
            Kind.DEFINE: self._define,
            Kind.FORGET: self._forget,
            Kind.UPLOAD: self._upload,
            Kind.ALLOCATE: self._allocate,
            Kind.WRITE: self._write,
            Kind.DOWNLOAD: self._download,
            Kind.SYNCHRONIZE: self._synchronize,
            Kind.COMPUTE: self._compute,
            Kind.POISONED: self._poisoned,
            Kind.POISON: self._poison,
            Kind.STATISTICS: self._statistics,
            Kind.PROBE: self._probe,
            Kind.FIGURES: self._figures,
            Kind.TRACE: self._trace,
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
        self._meter.begin()
        try:
            return handler(body)
        finally:
            self._meter.end(kind)

    def _define(self, body: memoryview) -> None:
        message = pb.Operation.FromString(bytes(body))
        self._operations[message.number] = Operation(message, function_of(message.name, self._own))

    def _forget(self, body: memoryview) -> None:
        for number in unpack_numbers(body):
            self._operations.pop(number, None)  # a definition may have failed

    def _run(self, body: memoryview) -> None:
        numbers, reals = unpack_calls(body)
        call = Call(self._store)
        call.reals = reals  # type: ignore[assignment]
        at, end, free, operations = 0, len(numbers), self._store.free, self._operations
        run, calls = self._call if self._meter.recorder is None else self._traced_call, 0
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
            run(operation, call, numbers[first_new:last])
            calls += 1
            call.next_real = next_real
            at = last
        self._meter.operations += calls

    def _traced_call(self, operation: Operation, call: Call, new: Sequence[int]) -> None:
        began_ns = time.monotonic_ns()
        self._call(operation, call, new)
        if self._meter.recorder is not None:
            self._meter.recorder.operation(
                operation.name, began_ns, time.monotonic_ns(), sum(operation.new_bytes)
            )

    def _call(self, operation: Operation, call: Call, new: Sequence[int]) -> None:
        """One call. If it fails, its results are poisoned and the failure is reported."""
        first, exchanges = call.next_buffer, self._group.exchanges
        try:
            if new:
                self._store.check_room(sum(operation.new_bytes))
            if operation.default_dtype is not self._default_dtype:
                self._take_default_dtype(operation)
            positional, named = operation.arguments(call)
            result = self._adapter.run(operation.function, positional, named)
            if new:
                self._keep(operation, result, new, positional)
            if operation.changed and self._store.unwritten:
                written = (call.buffers[first + i] for i in operation.changed)
                self._store.unwritten.difference_update(written)
        except Exception as error:  # noqa: BLE001 - whatever the device says
            buffers = call.buffers[first : first + operation.buffer_count]
            may_exchange = self._group.exchanges == exchanges
            self._failed(operation, buffers, new, error, may_exchange=may_exchange)

    def _take_default_dtype(self, operation: Operation) -> None:
        """Makes torch's default type the program's: it decides what integers become, say."""
        if operation.default_dtype is not None:
            self._default_dtype = operation.default_dtype
            torch.set_default_dtype(self._default_dtype)

    def _failed(
        self,
        operation: Operation,
        buffers: Sequence[int],
        new: Sequence[int],
        error: Exception,
        *,
        may_exchange: bool,
    ) -> None:
        """Poisons what a call was to make or change.

        If all cards know that the call has failed, all of them leave what it was to change as it
        was, unless nothing was in it. Otherwise the others have changed it, and this card's is
        poisoned.
        """
        store = self._store
        is_common = self._group.cards == 1 or store.is_common(buffers)
        if operation.exchange is not None:
            is_common = may_exchange or isinstance(error, AbsentError)
            if may_exchange:
                count, dtype = operation.exchange(operation.shapes())
                self._group.rows_without(count, dtype, error)
        why = str(error) if isinstance(error, PoisonedError) else _reason(operation.name, error)
        for number, size_bytes in zip(new, operation.new_bytes, strict=True):
            store.poison([number], why, is_common=is_common, size_bytes=size_bytes)
        changed = [buffers[i] for i in operation.changed]
        if is_common:
            changed = [one for one in changed if one in store.unwritten]
        store.poison(changed, why, is_common=is_common)
        if not isinstance(error, PoisonedError):
            self._report(operation.name, error)

    def _keep(
        self, operation: Operation, result: object, new: Sequence[int], arguments: list[Any]
    ) -> None:
        flat = _flat(result)
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
        self._meter.moved(Kind.UPLOAD, len(content))
        target = self._new_buffer(number, len(content))
        if target is not None and len(content):
            target.copy_(torch.frombuffer(content, dtype=torch.uint8))

    def _allocate(self, body: memoryview) -> None:
        number, size_bytes, _ = unpack_upload(body)
        self._new_buffer(number, size_bytes)
        self._store.unwritten.add(number)

    def _write(self, body: memoryview) -> None:
        number, first, content = unpack_upload(body)
        self._meter.moved(Kind.WRITE, len(content))
        with contextlib.suppress(PoisonedError):  # reported when it was allocated
            target = self._store.content(number)[first : first + len(content)]
            target.copy_(torch.frombuffer(content, dtype=torch.uint8))
            self._store.unwritten.discard(number)

    def _new_buffer(self, number: int, size_bytes: int) -> torch.Tensor | None:
        try:
            return self._store.allocate(number, size_bytes)
        except RuntimeError as error:
            why = _reason("aten::empty", error)
            self._store.poison([number], why, is_common=False, size_bytes=size_bytes)
            self._report("aten::empty", error)
            return None

    def _download(self, body: memoryview) -> Reply:
        number, first, end = unpack_range(body)
        content = self._store.content(number)[first:end].cpu().contiguous()
        self._meter.moved(Kind.DOWNLOAD, len(content))
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
        self._take_default_dtype(operation)
        positional, named = operation.arguments(call)
        began_ns = time.monotonic_ns()
        result = self._adapter.run(operation.function, positional, named)
        self._meter.operations += 1
        if self._meter.recorder is not None:
            self._meter.recorder.operation(operation.name, began_ns, time.monotonic_ns(), 0)
        flat = _flat(result)
        new = iter(numbers[1 + operation.buffer_count + operation.integer_count :])
        answer = pb.Results()
        for one in flat:
            self._answer(answer.items.add(), one, new)
        return [answer.SerializeToString()]

    def _answer(self, item: pb.Result, one: object, new: Any) -> None:
        if isinstance(one, torch.Tensor):
            self._store.check_room(one.numel() * one.element_size())
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
        self._adapter.synchronize()  # what fails on the device may show only now
        return [pack_numbers(self._store.poisoned)]

    def _poison(self, body: memoryview) -> None:
        for number, size_bytes in unpack_poison(body).items():
            self._store.poison([number], "it is missing on another card", is_common=True,
                               size_bytes=None if size_bytes < 0 else size_bytes)  # fmt: skip

    def _statistics(self, _: memoryview) -> Reply:
        return [pack_statistics(self._memory())]

    def _memory(self) -> Statistics:
        store, total_bytes = self._store, self._most_bytes
        if total_bytes is None:
            free_bytes, total_bytes = self._adapter.memory_bytes()
        else:
            free_bytes = max(total_bytes - store.used_bytes, 0)
        return Statistics(
            len(store), store.used_bytes, store.peak_bytes, free_bytes, total_bytes,
            len(self._operations),
        )  # fmt: skip

    def _figures(self, _: memoryview) -> Reply:
        return [pack_figures(self._meter.figures(self._memory()))]

    def _trace(self, body: memoryview) -> Reply:
        """Begins or ends a trace; the program has all events when it has the answer."""
        is_on, now_ns = unpack_trace(body), time.monotonic_ns()
        meter = self._meter
        if is_on and meter.recorder is None:
            meter.recorder = Recorder(self._send_trace, lambda: self._store.used_bytes)
        elif not is_on and meter.recorder is not None:
            meter.recorder.send(now_ns)
            meter.recorder = None
        return [pack_clock(now_ns)]

    def _probe(self, body: memoryview) -> Reply:
        return [pack_rates(operations_per_second(self._adapter, unpack_probe(body)))]


def _reason(operation: str, error: Exception) -> str:
    # torch lists all of its devices after the first line
    return f"{operation}: {type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _flat(values: object) -> list[Any]:
    """What an operation takes or returns, without the lists in it."""
    several = values if isinstance(values, (tuple, list)) else (values,)
    return [one for each in several for one in (each if isinstance(each, list) else (each,))]


def laid_out(tensor: torch.Tensor, shape: Shape, *, copy: bool) -> torch.Tensor:
    """`tensor` as the front-end was promised it: it may have other strides on this device."""
    has = Shape(tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
    if not copy and has == shape and tensor.untyped_storage().nbytes() == size_bytes_of(shape):
        return tensor
    out = torch.empty_strided(shape.size, shape.stride, dtype=shape.dtype, device=tensor.device)
    if tuple(tensor.shape) == shape.size:
        out.copy_(tensor)  # otherwise it is a result that nobody uses, and empty on this device
    else:
        out.zero_()
    return out


def _shares_storage(results: list[Any], arguments: list[Any]) -> bool:
    """Whether a result is a view of an argument although the operation makes no views."""
    own = {one.untyped_storage().data_ptr() for one in _tensors(arguments)}
    return any(one.untyped_storage().data_ptr() in own for one in _tensors(results))


def _tensors(values: list[Any]) -> list[torch.Tensor]:
    return [one for one in _flat(values) if isinstance(one, torch.Tensor) and one.numel()]
