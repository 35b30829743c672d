"""`Kernel`: what torch calls for one operation on tensors of the device."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from penstock.card.device.dynamic import compute
from penstock.card.device.inference import DependsOnDataError
from penstock.card.device.messages import is_wrapped_number
from penstock.card.device.planner import ResizeError
from penstock.card.device.random import draw_seed
from penstock.card.device.resizing import resize
from penstock.card.device.tensors import check_index

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.card.device.buffer import Buffer
    from penstock.card.device.plan import Plan
    from penstock.card.device.session import Session
    from penstock.card.device.signature import Signature

_Tensor = torch.Tensor
_Parameter = torch.nn.Parameter
_Generator = torch._C.Generator  # also those that torch passes on without their Python class
_Device = type(torch.empty(0).device)  # torch.device may be replaced (`cuda_name`)
_PLAIN = {int, type(None), str, torch.dtype, torch.memory_format, torch.layout, _Device}
_COMPLEX = {torch.complex32, torch.complex64, torch.complex128}  # their views may be conjugated
_NO_INTEGERS: list[int] = []
_default_dtype = torch.get_default_dtype  # what integers become, and what a float is made


# How many elements these make depends on their floats, which otherwise do not decide the plan.
SIZED_BY_FLOATS = {"aten::arange", "aten::range"}


class Scan:
    """The arguments of a call: what its plan depends on, and what comes with each call."""

    __slots__ = ("buffers", "generator", "integers", "key", "reals", "tensors")

    def __init__(self) -> None:
        self.key: list[Any] = []
        self.tensors: list[torch.Tensor] = []
        self.buffers: list[Buffer] = []
        self.integers: list[int] = []
        self.reals: list[float] = []
        self.generator: torch.Generator | None = None

    def add(self, value: Any) -> None:
        """Takes an argument. Raises `RuntimeError` for a tensor of another device."""
        kind = type(value)
        if isinstance(value, _Tensor):
            storage = value.untyped_storage()
            try:
                buffer = storage.buffer
            except AttributeError:
                self._add_other(value)
                return
            self.tensors.append(value)
            self.buffers.append(buffer)
            self.key += (value.dtype, value.shape, value.stride(), value.storage_offset(),
                         buffer.layout, value.is_neg())  # fmt: skip
            if value.is_conj():
                self.key.append("conj")
        elif kind is float:
            self.reals.append(value)
            self.key.append(float)
        elif kind is list or kind is tuple:
            self.key.append(len(value))
            for one in value:
                self.add(one)
        elif kind is bool:
            self.key += (bool, value)
        elif isinstance(value, _Generator):
            self.generator = value
        else:
            if kind is _Device:
                check_index(value)
            self.key.append(value)

    def _add_other(self, value: torch.Tensor) -> None:
        """A tensor on the CPU without dimensions is a number."""
        if value.device.type != "cpu" or value.dim():
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"penstock:0 and {value.device}! Move the tensor of size {list(value.shape)} with "
                '.to("penstock")'
            )
        if value.is_complex():
            self.key += (complex, value.dtype, value.item())
            return
        number = value.item()
        self.key += (_Tensor, value.dtype, is_wrapped_number(value))
        if value.dtype.is_floating_point:
            self.reals.append(float(number))
        else:
            self.integers.append(int(number))


class Kernel:
    """One operation. Plans are kept for each combination of shapes and layouts."""

    def __init__(self, signature: Signature, session: Callable[[], Session]) -> None:
        self._signature = signature
        self._is_special = signature.is_random or signature.name in SIZED_BY_FLOATS
        self._session = session

    @property
    def name(self) -> str:
        """The operation's name, such as "aten::add.Tensor"."""
        return self._signature.full_name

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        """Runs the operation. Raises what torch says of arguments that do not fit."""
        session = self._session()
        stream = session.stream
        with stream.lock:
            if stream.failures.is_set or stream.is_torn:
                stream.raise_failure()
            if not kwargs and not self._is_special:
                # Nine of ten calls: tensors and numbers by position, seen before. Every attribute
                # that is asked for here costs a program of small operations a percent.
                key: list[Any] = [self, _default_dtype()]
                tensors: list[torch.Tensor] = []
                buffers: list[Buffer] = []
                reals: list[float] = []
                for value in args:
                    kind = type(value)
                    if kind is _Tensor or kind is _Parameter:
                        buffer = getattr(value.untyped_storage(), "buffer", None)
                        dtype = value.dtype
                        if buffer is None or buffer in buffers or dtype in _COMPLEX:
                            break
                        tensors.append(value)
                        buffers.append(buffer)
                        key += (dtype, value.shape, value.stride(), value.storage_offset(),
                                buffer.layout, value.is_neg())  # fmt: skip
                    elif kind is float:
                        reals.append(value)
                        key.append(float)
                    elif kind in _PLAIN:
                        key.append(value)
                    else:
                        break
                else:
                    plan = session.plans.recent.get(tuple(key))
                    if plan is not None:
                        return plan.run(session, tensors, buffers, _NO_INTEGERS, reals)
            return self._scanned(session, args, kwargs)

    def _scanned(self, session: Session, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """A call with arguments of any kind, or of shapes that were not seen before."""
        scan = Scan()
        for value in args:
            scan.add(value)
        for name, value in kwargs.items():
            scan.key.append(name)
            scan.add(value)
        if self._signature.is_random:
            scan.integers.append(draw_seed(scan.generator))
        if self._signature.name in SIZED_BY_FLOATS:
            scan.key += scan.reals
        numbers = [one.number for one in scan.buffers]
        if len(set(numbers)) != len(numbers):  # two arguments may be views of one buffer
            scan.key.append(tuple(numbers.index(one) for one in numbers))
        key = (self, _default_dtype(), *scan.key)
        if session.dynamic.find(key) is not None:
            return compute(session, self._signature, args, kwargs, scan, key)
        plan = session.plans.find(key)
        if plan is None:
            try:
                plan = self._plan(session, scan, args, kwargs, key)
            except DependsOnDataError:
                return compute(session, self._signature, args, kwargs, scan, key)
            except ResizeError as error:
                resize(scan.tensors[error.tensor], error.size, error.stride)
                return self(*args, **kwargs)
            session.plans.add(key, plan)
        return plan.run(session, scan.tensors, scan.buffers, scan.integers, scan.reals)

    def _plan(
        self,
        session: Session,
        scan: Scan,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: tuple[Any, ...],
    ) -> Plan:
        planner, began_ns = session.planner, time.monotonic_ns()
        plan = planner.plan(self._signature, args, kwargs, scan.tensors, scan.buffers, key)
        planner.costs.planned(self._signature.name, began_ns)
        return plan
