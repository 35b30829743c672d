"""JAX on the virtual card: jitted functions are computed by the cards, one primitive at a time.

A program that `penstock train` starts is an ordinary JAX program for one device. What `jax.jit` has
traced is a jaxpr, a list of primitives; each is computed by one or a few operations of torch on the
device "penstock", which splits them over the cards. Results stay there as `CardArray`, which is a
`jax.Array`. JAX itself does all else: tracing, differentiation, static and donated arguments.

What is computed where:
- JAX's own jitted functions, which its eager code consists of, run in JAX on the CPU until an
  argument of theirs is on the cards.
- In the program's jitted functions, arrays are on the cards. Scalars, random keys and types of
  numbers that torch lacks (unsigned ones of more than a byte, complex ones) stay in the program's
  process. What has such operands alone is computed there by JAX, so that random numbers are JAX's
  own, bit for bit. What depends on no argument is computed there once.
- A primitive that has no rule here is an error that names it, or is computed by JAX in the
  program's process if $PENSTOCK_CARD_JAX_UNKNOWN is "cpu". In JAX's own functions it always is.

An adapter of a third framework needs five things, which are the parts of this file:
1. a way into a program that nobody changed (`install`, which `penstock.card.autoload` calls, from
   whatever the framework calls of an extension: JAX has entry points in the group "jax_plugins");
2. an array type that holds a tensor on the cards, and that the framework takes for one of its own
   (`CardArray`);
3. the place where the framework executes what it has traced (`_executed`);
4. an operation of torch for each of its operations, with its rules for NaN, division by zero,
   indices out of range and types of numbers (`_rule`), and an error for all others;
5. a word to the device when a step has ended (`_end_step`), because speeds are adapted and copies
   for lost cards are made then.
Nothing else of the virtual card, and nothing of a job's document, knows a framework.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import operator
import os
import threading
import warnings
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import torch
from jax._src import array, core, distributed, dtypes, pjit, source_info_util
from jax._src.interpreters import partial_eval, pxla
from jax._src.lax import lax
from jax._src.lax.slicing import GatherScatterMode
from jax._src.numpy import array_methods
from jax._src.state.types import AbstractRef
from torch import Tensor

from penstock.card.device import module, source_line, steps
from penstock.card.device.warn import warn
from penstock.card.names import PenstockCardWarning
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

UNKNOWN_VARIABLE = "PENSTOCK_CARD_JAX_UNKNOWN"  # what becomes of primitives without a rule
FIRST_JAX, END_JAX = (0, 10), (0, 11)  # tested releases: from the first on, before the end
MOST_CONSTANT = 1 << 22  # elements of a constant that is computed once and kept
device = "penstock"  # tests compare the rules with JAX on the CPU, without cards

_OWN_FILES = str(Path(jax.__file__).parent) + "/"
_NAMES = ("float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "bool")
_TYPES: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(dtypes.bfloat16): torch.bfloat16,
    **{np.dtype(name): getattr(torch, name) for name in _NAMES},
}
_former: Any = pjit._pjit_call_impl_python
_thread = threading.local()  # .is_here: JAX itself computes what this thread gives to it


# 1. The way into a program.
def install() -> None:
    """Makes JAX compute on the cards what the program has jitted; called while JAX starts.

    Raises:
        RuntimeError: this release of JAX is not known, so that nothing is changed.
    """
    release = tuple(map(int, jax.__version__.split(".")[:2]))
    if not FIRST_JAX <= release < END_JAX:
        tested = ".".join(map(str, FIRST_JAX))
        raise RuntimeError(
            f"JAX {jax.__version__} is not among the releases that were tested ({tested}), so JAX "
            "computes on the CPU"
        )
    jax.config.update("jax_platforms", "cpu")  # a GPU of this machine is one of the cards
    source_line.leave_out(_OWN_FILES)
    pjit._pjit_call_impl_python = _executed
    _skip_first_shortcut()
    _register_array()
    atexit.register(_warn_of_cpu)


def _skip_first_shortcut() -> None:
    """JAX may have started because the program called a jitted function, which runs on the CPU now.

    It must not be kept as what that function does from now on.
    """
    former = pjit._get_fastpath_data

    def none_once(*_: Any) -> None:
        pjit._get_fastpath_data = former

    pjit._get_fastpath_data = none_once


def _warn_of_cpu() -> None:
    if not module.is_initialized():
        warn("JAX computed on the CPU, and this program's cards did nothing: put the step of the "
             "training into a function with jax.jit")  # fmt: skip


# 2. The array type.
class CardArray(jax.Array):  # type: ignore[misc] # of JAX, which mypy does not see
    """An array of JAX that is on the cards; its value is fetched when the program looks at it."""

    __slots__ = ("_fetched", "_tensor", "aval")
    __array_priority__ = array.ArrayImpl.__array_priority__  # NumPy's operators ask for it

    def __init__(self, tensor: Tensor, aval: Any) -> None:
        self._tensor: Tensor | None = tensor
        self._fetched: Any = None  # the same as an array of JAX on the CPU
        self.aval = aval

    shape = property(lambda self: self.aval.shape)
    dtype = property(lambda self: self.aval.dtype)
    ndim = property(lambda self: len(self.aval.shape))
    size = property(lambda self: math.prod(self.aval.shape))
    weak_type = property(lambda self: self.aval.weak_type)
    committed = property(lambda _: False)
    _value = property(lambda self: self.fetched()._value)

    def tensor(self) -> Tensor:
        """The tensor on the cards. Raises `RuntimeError` if it was donated."""
        if self._tensor is None:
            raise RuntimeError(f"Array has been deleted with shape={self.aval.str_short()}.")
        return self._tensor

    def fetched(self) -> Any:
        """The array on the CPU. Raises `RuntimeError` if it was donated."""
        tensor = self.tensor()
        if self._fetched is None:
            self._fetched = jax.numpy.asarray(_fetched(tensor, self.aval.dtype))
        return self._fetched

    def block_until_ready(self) -> CardArray:
        """Waits until all cards have done all work. Raises `RuntimeError` if it was donated."""
        self.tensor()
        module.synchronize()
        return self

    def delete(self) -> None:
        """Gives its memory back; the array cannot be used any more."""
        self._tensor = self._fetched = None

    def is_deleted(self) -> bool:
        """Whether it was donated or deleted."""
        return self._tensor is None

    def copy_to_host_async(self) -> None:
        """Does nothing: the value is fetched when the program looks at it."""

    def on_device_size_in_bytes(self) -> int:
        """The bytes of its elements."""
        return self.size * int(self.dtype.itemsize)

    def _check_if_deleted(self) -> None:
        self.tensor()


_AS_ON_CPU = (
    "sharding", "device", "is_fully_addressable", "is_fully_replicated", "addressable_shards",
    "global_shards", "format",
)  # fmt: skip
_CALLED_AS_ON_CPU = ("devices", "addressable_data", "__dlpack__", "__dlpack_device__",
                     "unsafe_buffer_pointer")  # fmt: skip
_BY_VALUE = (  # methods of JAX's array that need nothing but its value
    "__len__", "__bool__", "__float__", "__int__", "__complex__", "__index__", "__hex__", "__oct__",
    "tobytes", "tolist", "__format__", "__iter__", "__repr__", "__str__", "__array__", "__reduce__",
    "__getitem__",
)  # fmt: skip


def _register_array() -> None:
    """Makes JAX take a `CardArray` for an array in all its functions."""

    def as_on_cpu(name: str) -> Callable[[CardArray], Any]:
        return lambda self: getattr(self.fetched(), name)

    array_methods._set_array_base_attributes(CardArray)
    for name in _BY_VALUE:
        setattr(CardArray, name, vars(array.ArrayImpl)[name])
    for name in _AS_ON_CPU:
        setattr(CardArray, name, property(as_on_cpu(name)))
    for name in _CALLED_AS_ON_CPU:
        get = as_on_cpu(name)
        setattr(CardArray, name, lambda self, *args, _get=get, **more: _get(self)(*args, **more))
    core.pytype_aval_mappings[CardArray] = lambda one: one.aval
    dtypes.canonicalize_value_handlers[CardArray] = lambda one: one
    shard = pxla.shard_arg_handlers[array.ArrayImpl]
    pxla.shard_arg_handlers[CardArray] = lambda arrays, *more: shard(
        [one.fetched() for one in arrays], *more
    )


def _fetched(tensor: Tensor, dtype: Any) -> Any:
    """A tensor's value as an array of NumPy; the program waits for the cards."""
    tensor = tensor.contiguous().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(dtype)
    return tensor.numpy()


def _sent(value: Any) -> Tensor:
    """An array of NumPy or JAX as a tensor on the cards."""
    own = np.ascontiguousarray(value).reshape(np.shape(value))  # the former makes one of 0 dims 1-d
    dtype = _TYPES[own.dtype]
    if dtype == torch.bfloat16:
        own = own.view(np.int16)
    if not own.flags.writeable:
        own = own.copy()  # torch warns of others
    return torch.from_numpy(own).view(dtype).to(device)


_kept: dict[int, tuple[weakref.ref[Any], Tensor]] = {}  # of JAX's arrays, which do not change


def _sent_once(value: Any) -> Tensor:
    """As `_sent`; an array of JAX is sent once as long as it lives."""
    if not isinstance(value, array.ArrayImpl):
        return _sent(value)
    key = id(value)
    found = _kept.get(key)
    if found is None or found[0]() is not value:
        found = weakref.ref(value, lambda _: _kept.pop(key, None)), _sent(value)
        _kept[key] = found
    return found[1]


# 3. The place where JAX executes what it has traced.
class _UnsupportedError(Exception):
    """The cards cannot compute a primitive, or not in this way; the text says which and why."""


def _executed(*args: Any, jaxpr: Any, donated_invars: Any, **more: Any) -> Any:
    """Takes the place of what compiles a jitted function for the CPU and runs it.

    Raises:
        PenstockError: the cards cannot compute something in the program's function.
    """
    source = jaxpr.debug_info.func_src_info or ""
    is_own = f" at {_OWN_FILES}" in source
    has_cards = any(type(one) is CardArray for one in args)
    if getattr(_thread, "is_here", False) or (is_own and not has_cards):
        return _former(*args, jaxpr=jaxpr, donated_invars=donated_invars, **more)
    if distributed.global_state.client is not None:
        raise PenstockError(
            "jax.distributed is of several processes", "this program runs once, on all its cards",
            "leave jax.distributed.initialize out",
        )  # fmt: skip
    try:
        plan = _plan(jaxpr)
        values = [_entered(*both) for both in zip(args, jaxpr.in_avals, strict=True)]
        for one, is_donated in zip(args, donated_invars, strict=True):
            if is_donated and type(one) is CardArray and not is_own:
                one.delete()
        results = plan.run(values)
    except _UnsupportedError as error:
        if is_own or os.environ.get(UNKNOWN_VARIABLE) == "cpu":
            here = [one.fetched() if type(one) is CardArray else one for one in args]
            return _former(*here, jaxpr=jaxpr, donated_invars=donated_invars, **more)
        raise PenstockError(
            f"the cards cannot compute {source.partition(' at ')[0] or 'a jitted function'}",
            str(error),
            f"write it differently, or set {UNKNOWN_VARIABLE}=cpu to have it computed in the "
            "program's process, which is right and slow",
        ) from None
    if not is_own:
        _end_step()
    if jax.config.jax_debug_nans:
        _refuse_nan(results, source)
    left = [_left(*both) for both in zip(results, jaxpr.out_avals, strict=True)]
    return left, None, None, []


def _refuse_nan(results: list[Any], source: str) -> None:
    """What jax_debug_nans asks for. Raises `FloatingPointError`."""
    tensors = [one for one in results if type(one) is Tensor and one.is_floating_point()]
    if any(bool(one.isnan().any()) for one in tensors):
        raise FloatingPointError(f"invalid value (nan) encountered in {source}")


def _entered(value: Any, aval: Any) -> Any:
    """An argument of a jitted function, where it is computed with. Raises `_UnsupportedError`."""
    if isinstance(aval, AbstractRef):
        raise _UnsupportedError("an array that changes (jax.new_ref) is none of the cards'")
    if type(value) is CardArray:
        return value.tensor() if aval.dtype in _TYPES else value.fetched()
    if not hasattr(value, "dtype") or value.dtype != aval.dtype:  # x64 is disabled
        value = np.asarray(value, aval.dtype)
    return _sent_once(value) if aval.shape and aval.dtype in _TYPES else value


def _left(value: Any, aval: Any) -> Any:
    """A result as the program gets it."""
    if type(value) is not Tensor:
        own = _here(value)
        if not isinstance(own, jax.Array):
            own = jax.numpy.asarray(own, aval.dtype)
        if getattr(own, "weak_type", False) == aval.weak_type:  # random keys have no such type
            return own
        return lax._convert_element_type(own, aval.dtype, weak_type=aval.weak_type)
    if value.untyped_storage().nbytes() > value.numel() * value.element_size():
        value = value.clone()  # a part must not keep the memory of the whole
    return CardArray(value, aval)


def _end_step() -> None:
    """5. The end of a step: of each function that the program has jitted and called."""
    if module.is_initialized():
        steps.count += 1
        module._session().step_ended()


class _Constant:
    """A value that depends on no argument: computed here once, and sent to the cards once."""

    def __init__(self, value: Any) -> None:
        self.here = value
        self._tensor: Tensor | None = None

    def tensor(self) -> Tensor:
        """The value on the cards."""
        if self._tensor is None:
            self._tensor = _filled(self.here) if _is_uniform(self.here) else _sent(self.here)
        return self._tensor


class _Step(NamedTuple):
    """An equation of a jaxpr, and which of its variables nobody needs after it."""

    equation: Any
    compute: Callable[..., Any]
    finished: tuple[Any, ...]


class _Plan:
    """How a jaxpr is computed."""

    def __init__(self, closed: Any) -> None:
        own = closed.jaxpr
        if any(isinstance(one.aval, AbstractRef) for one in own.constvars):
            raise _UnsupportedError("an array that changes (jax.new_ref) is none of the cards'")
        self._inputs, self._outputs = own.invars, own.outvars
        pairs = zip(own.constvars, closed.consts, strict=True)
        self._constants: dict[Any, _Constant] = {
            one: _Constant(jax.numpy.asarray(value) if np.isscalar(value) else value)
            for one, value in pairs
        }
        used = [*own.outvars, *(one for equation in own.eqns for one in equation.invars)]
        self._constants |= {
            id(one): _Constant(np.asarray(one.val, one.aval.dtype))
            for one in used if type(one) is core.Literal
        }  # fmt: skip
        self._steps = list(self._planned(own))

    def _planned(self, own: Any) -> Iterator[_Step]:
        last: dict[Any, Any] = {one: None for one in own.outvars if type(one) is core.Var}
        for equation in reversed(own.eqns):
            for one in equation.invars:
                if type(one) is core.Var and one not in last:
                    last[one] = equation
        for equation in own.eqns:
            if self._is_constant(equation):
                self._keep(equation)
                continue
            finished = {one for one in equation.invars
                        if type(one) is core.Var and last[one] is equation
                        and one not in self._constants}  # fmt: skip
            finished |= {one for one in equation.outvars if one not in last}
            yield _Step(equation, _computation(equation), tuple(finished))

    def _key(self, variable: Any) -> Any:
        return id(variable) if type(variable) is core.Literal else variable

    def _is_constant(self, equation: Any) -> bool:
        if equation.effects or equation.primitive.name in _NO_CONSTANTS:
            return False
        if sum(math.prod(one.aval.shape) for one in equation.outvars) > MOST_CONSTANT:
            return False
        return all(self._key(one) in self._constants for one in equation.invars)

    def _keep(self, equation: Any) -> None:
        values = [self._constants[self._key(one)] for one in equation.invars]
        results = _computed_here(equation, values)
        for one, value in zip(equation.outvars, results, strict=True):
            self._constants[one] = _Constant(value)

    def run(self, args: Sequence[Any]) -> list[Any]:
        """The results for such arguments: tensors, or values that are here.

        Raises:
            _UnsupportedError: the cards cannot compute it.
        """
        values = {**self._constants, **dict(zip(self._inputs, args, strict=True))}
        del args
        for equation, compute, finished in self._steps:
            given = [values[self._key(one)] for one in equation.invars]
            results = compute(equation, given)
            del given
            values.update(zip(equation.outvars, results, strict=True))
            del results
            for one in finished:
                values.pop(one, None)
        return [values[self._key(one)] for one in self._outputs]


_plans: weakref.WeakKeyDictionary[Any, _Plan] = weakref.WeakKeyDictionary()


def _plan(closed: Any) -> _Plan:
    if closed not in _plans:
        _plans[closed] = _Plan(closed)
    return _plans[closed]


def _computation(equation: Any) -> Callable[..., Any]:
    """What computes an equation: JAX here, the rule for a loop or call, or one for an operation."""
    name = equation.primitive.name
    if name in _CALLS:
        return _CALLS[name]
    if name in _HERE:
        return _computed_here
    known = all(one.aval.dtype in _TYPES for one in [*equation.invars, *equation.outvars])
    return _computed if known else _computed_for_its_type


def _computed(equation: Any, values: list[Any]) -> list[Any]:
    """The results of an operation; on the cards if one of the operands is there."""
    if not any(type(one) is Tensor for one in values):
        return _computed_here(equation, values)
    try:
        return _by_rule(equation, values)
    except _UnsupportedError as error:
        if os.environ.get(UNKNOWN_VARIABLE) != "cpu":
            raise _UnsupportedError(f"{error}{_place(equation)}") from None
        _warn_of_here(equation, str(error))
    return _computed_here(equation, values)


def _by_rule(equation: Any, values: list[Any]) -> list[Any]:
    """The results of an operation's rule. Raises `_UnsupportedError`."""
    name = equation.primitive.name
    rule = _RULES.get(name)
    if rule is None:
        why = f" ({_REASONS[name]})" if name in _REASONS else ""
        raise _UnsupportedError(f"JAX's primitive {name!r} has no rule{why}")
    results = rule(equation, *values)
    results = list(results) if equation.primitive.multiple_results else [results]
    for one, value in zip(equation.outvars, results, strict=True):
        if tuple(value.shape) != one.aval.shape or value.dtype != _TYPES[one.aval.dtype]:
            raise _UnsupportedError(f"the rule of JAX's primitive {name!r} is wrong for this use: "
                                    f"{value.dtype} of {tuple(value.shape)} is not "
                                    f"{one.aval.str_short()}")  # fmt: skip
    return results


_REASONS = {"shard_map": "it is of several devices, and this program has one: leave it out"}


def _computed_for_its_type(equation: Any, values: list[Any]) -> list[Any]:
    """The results of an operation on numbers that torch has not, by JAX in this process."""
    if any(type(one) is Tensor and one.ndim for one in values):
        avals = [one.aval for one in (*equation.invars, *equation.outvars)]
        kind = next(one.dtype for one in avals if one.dtype not in _TYPES)
        _warn_of_here(equation, f"the cards have no numbers of type {kind}")
    return _computed_here(equation, values)


def _place(equation: Any) -> str:
    where = source_info_util.summarize(equation.source_info)
    return f" at {where}" if where else ""


def _warn_of_here(equation: Any, why: str) -> None:
    """Warns, once for each place, that the program waits for the cards and computes itself."""
    name = f"{equation.primitive.name}{_place(equation)}"
    text = f"{name} is computed in the program's process: {why}"
    if text in _warned:
        return
    _warned.add(text)
    line = source_line.source_line() or source_line.SourceLine("penstock.card", 0)
    warnings.warn_explicit(f"slow on device penstock: {text}", PenstockCardWarning,
                           line.file, line.number)  # fmt: skip


_warned: set[str] = set()


def _computed_here(equation: Any, values: list[Any]) -> list[Any]:
    """The results of an equation by JAX on the CPU."""
    own = [_here(one) for one in values]
    is_spread = equation.primitive.name == "broadcast_in_dim" and np.ndim(own[0]) == 0
    if is_spread and equation.outvars[0].aval.dtype in _TYPES:  # no memory, one number for a card
        return [np.broadcast_to(np.asarray(own[0]), equation.params["shape"])]
    with _computing_here(), equation.ctx.manager:
        more = equation.primitive.get_bind_params(equation.params)
        results = equation.primitive.bind(*own, **more)
    return list(results) if equation.primitive.multiple_results else [results]


@contextlib.contextmanager
def _computing_here() -> Iterator[None]:
    former, _thread.is_here = getattr(_thread, "is_here", False), True
    try:
        yield
    finally:
        _thread.is_here = former


def _here(value: Any) -> Any:
    """A value as JAX on the CPU takes it."""
    if type(value) is _Constant:
        return value.here
    if type(value) is Tensor:
        return _fetched(value, dtypes.bfloat16 if value.dtype == torch.bfloat16 else None)
    return value


def _is_uniform(value: Any) -> bool:
    """Whether an array is one number, maybe many times."""
    if np.ndim(value) == 0:
        return True
    return isinstance(value, np.ndarray) and value.size > 0 and not any(value.strides)


def _number(value: Any) -> Any:
    return np.asarray(value).reshape(-1)[0].item()


def _filled(value: Any) -> Tensor:
    """A tensor on the cards with one number everywhere."""
    first = np.asarray(value)
    made = torch.full((), _number(first.astype(np.float32) if first.dtype == dtypes.bfloat16
                                  else first[(0,) * first.ndim]), dtype=_TYPES[first.dtype],
                      device=device)  # fmt: skip
    return made.expand(first.shape)


def _tensor(value: Any) -> Tensor:
    """A value as a tensor on the cards."""
    if type(value) is Tensor:
        return value
    if type(value) is _Constant:
        return value.tensor()
    # Whole numbers are part of an operation's plan, so one that changes is sent as a tensor.
    if _is_uniform(value) and np.issubdtype(value.dtype, np.inexact):
        return _filled(value)
    return _sent_once(value)


def _operand(value: Any) -> Any:
    """A value as operations take it that allow numbers in place of tensors."""
    if type(value) is Tensor:
        return value
    own = value.here if type(value) is _Constant else value
    is_float = own.dtype == dtypes.bfloat16 or np.issubdtype(own.dtype, np.inexact)
    if _is_uniform(own) and (is_float or type(value) is _Constant):
        first = np.asarray(own)
        return first[(0,) * first.ndim].astype(np.float64).item() if is_float else _number(first)
    return _tensor(value)


# 4a. Calls and loops: what has jaxprs within it.
def _call(equation: Any, values: list[Any]) -> list[Any]:
    """Any primitive that computes one jaxpr, whatever it is derived by."""
    own = equation.params
    jaxpr = own.get("call_jaxpr") or own["jaxpr"]
    if not isinstance(jaxpr, core.ClosedJaxpr):
        jaxpr = partial_eval.close_jaxpr(jaxpr)
    if not any(type(one) is Tensor for one in values):
        unknown = [one for one in equation.invars if one.aval.dtype not in _TYPES]
        if unknown:  # of random keys: JAX computes it as a whole
            return _computed_here(equation, values)
    return _plan(jaxpr).run(values)


def _scan(equation: Any, values: list[Any]) -> list[Any]:
    own = equation.params
    consts, carried = own["num_consts"], own["num_carry"]
    fixed, carry, rows = (
        values[:consts],
        values[consts : consts + carried],
        values[consts + carried :],
    )
    plan, length = _plan(own["jaxpr"]), own["length"]
    made: list[list[Any]] = [[None] * length for _ in equation.outvars[carried:]]
    for i in reversed(range(length)) if own["reverse"] else range(length):
        results = plan.run([*fixed, *carry, *(_row(one, i) for one in rows)])
        carry = results[:carried]
        for column, value in zip(made, results[carried:], strict=True):
            column[i] = value
    stacked = [_stacked(column, one.aval)
               for column, one in zip(made, equation.outvars[carried:], strict=True)]  # fmt: skip
    return [*carry, *stacked]


def _row(value: Any, i: int) -> Any:
    return (value.here if type(value) is _Constant else value)[i]


def _stacked(column: list[Any], aval: Any) -> Any:
    if not column:
        return np.zeros(aval.shape, aval.dtype)
    if any(type(one) is Tensor for one in column):
        return torch.stack([_tensor(one) for one in column])
    return jax.numpy.stack([_here(one) for one in column])


def _while(equation: Any, values: list[Any]) -> list[Any]:
    own = equation.params
    of_condition, of_body = own["cond_nconsts"], own["body_nconsts"]
    first, second = values[:of_condition], values[of_condition : of_condition + of_body]
    carry = values[of_condition + of_body :]
    condition, body = _plan(own["cond_jaxpr"]), _plan(own["body_jaxpr"])
    while bool(_here(condition.run([*first, *carry])[0])):
        carry = body.run([*second, *carry])
    return carry


def _cond(equation: Any, values: list[Any]) -> list[Any]:
    branches = equation.params["branches"]
    chosen = min(max(int(_here(values[0])), 0), len(branches) - 1)
    return _plan(branches[chosen]).run(values[1:])


def _as_is(_: Any, values: list[Any]) -> list[Any]:
    return values


_CALLS: dict[str, Callable[..., list[Any]]] = {
    **dict.fromkeys(
        ("jit", "closed_call", "call", "core_call", "remat2", "custom_jvp_call", "custom_vjp_call",
         "composite"), _call),
    "scan": _scan, "while": _while, "cond": _cond,
    **dict.fromkeys(
        ("copy", "stop_gradient", "name", "optimization_barrier", "device_put", "copy_p",
         "sharding_constraint", "layout_constraint"), _as_is),
}  # fmt: skip
_HERE = {  # JAX computes these in the program's process, whatever their operands are
    "random_seed", "random_bits", "random_split", "random_fold_in", "random_wrap", "random_unwrap",
    "random_clone", "random_gamma", "threefry2x32", "debug_callback", "debug_print",
    "pure_callback", "io_callback",
}  # fmt: skip
_NO_CONSTANTS = {"debug_callback", "debug_print", "pure_callback", "io_callback"}


# 4b. A rule for each of JAX's operations.
_RULES: dict[str, Callable[..., Any]] = {}


def _rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(rule: Callable[..., Any]) -> Callable[..., Any]:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return add


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _, x: function(x)


def _binary(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of two operands, each of which may be a number."""

    def compute(equation: Any, a: Any, b: Any) -> Any:
        return _widened(equation, function(_operand(a), _operand(b)))

    return compute


def _widened(equation: Any, made: Tensor) -> Tensor:
    """A result in its full shape: what it was widened by may have been a number for torch."""
    shape = equation.outvars[0].aval.shape
    return made if made.shape == shape else made.expand(shape)


def _of_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _, *values: function(*map(_tensor, values))


for _name, _function in {
    "neg": torch.neg, "floor": torch.floor, "ceil": torch.ceil, "is_finite": torch.isfinite,
    "exp": torch.exp, "exp2": torch.exp2, "log": torch.log, "expm1": torch.expm1,
    "log1p": torch.log1p, "tanh": torch.tanh, "logistic": torch.sigmoid, "sin": torch.sin,
    "cos": torch.cos, "tan": torch.tan, "asin": torch.asin, "acos": torch.acos, "atan": torch.atan,
    "sinh": torch.sinh, "cosh": torch.cosh, "asinh": torch.asinh, "acosh": torch.acosh,
    "atanh": torch.atanh, "abs": torch.abs, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "square": torch.square, "not": torch.bitwise_not, "erf": torch.erf, "erfc": torch.erfc,
    "erf_inv": torch.erfinv, "lgamma": torch.lgamma, "digamma": torch.digamma,
    "bessel_i0e": torch.special.i0e, "bessel_i1e": torch.special.i1e,
}.items():  # fmt: skip
    _RULES[_name] = _unary(_function)
for _name, _function in {
    "add": operator.add, "add_any": operator.add, "sub": operator.sub, "mul": operator.mul,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    "eq": operator.eq, "ne": operator.ne, "ge": operator.ge, "gt": operator.gt,
    "le": operator.le, "lt": operator.lt,
}.items():  # fmt: skip
    _RULES[_name] = _binary(_function)
for _name, _function in {
    "max": torch.maximum, "min": torch.minimum, "atan2": torch.atan2, "nextafter": torch.nextafter,
}.items():  # fmt: skip
    _RULES[_name] = _of_tensors(_function)


def _is_whole(equation: Any) -> bool:
    """Whether the result is of whole numbers."""
    return not _TYPES[equation.outvars[0].aval.dtype].is_floating_point


@_rule("sign")
def _sign(_: Any, x: Tensor) -> Tensor:
    made = torch.sign(x)
    return torch.where(x.isnan() | (x == 0), x, made) if x.is_floating_point() else made


@_rule("cbrt")
def _cbrt(_: Any, x: Tensor) -> Tensor:
    return torch.copysign(x.abs().pow(1 / 3), x)


@_rule("round")
def _round(equation: Any, x: Tensor) -> Tensor:
    if int(equation.params["rounding_method"]) == 1:
        return torch.round(x)  # halves to even
    whole = torch.trunc(x)
    return torch.where((x - whole).abs() >= 0.5, whole + torch.sign(x), whole)


@_rule("integer_pow")
def _integer_pow(equation: Any, x: Tensor) -> Tensor:
    return torch.pow(x, int(equation.params["y"]))


@_rule("pow")
def _pow(equation: Any, x: Any, y: Any) -> Tensor:
    if _is_whole(equation):
        raise _UnsupportedError("a power of whole numbers has no rule")
    if type(y) is Tensor and not y.is_floating_point():
        y = y.to(_TYPES[equation.outvars[0].aval.dtype])
    return _widened(equation, torch.pow(_operand(x), _operand(y)))


@_rule("div")
def _div(equation: Any, a: Any, b: Any) -> Tensor:
    if not _is_whole(equation):
        # A number divided by a tensor is rounded twice in torch.
        return _widened(equation, _tensor(a) / _operand(b))
    x, y = _tensor(a), _tensor(b)
    # As XLA has it: -1 for division by zero, and the lowest number divided by -1 is itself.
    made = torch.div(x, _safe_divisor(y), rounding_mode="trunc")
    if y.dtype != torch.uint8:
        made = torch.where(y == -1, -x, made)
    return torch.where(y == 0, -1, made)


def _safe_divisor(y: Tensor) -> Tensor:
    """1 in place of what processors cannot divide by."""
    return torch.where(y == 0 if y.dtype == torch.uint8 else (y == 0) | (y == -1), 1, y)


@_rule("rem")
def _rem(equation: Any, a: Any, b: Any) -> Tensor:
    x, y = _tensor(a), _tensor(b)
    if not _is_whole(equation):
        return torch.fmod(x, y)
    made = torch.fmod(x, _safe_divisor(y))
    return torch.where(y == 0, x, made)


@_rule("eq_to", "le_to", "lt_to")
def _in_total_order(equation: Any, a: Any, b: Any) -> Tensor:
    function = getattr(torch, equation.primitive.name.removesuffix("_to"))
    return function(_ordered(_tensor(a)), _ordered(_tensor(b)))


def _ordered(x: Tensor) -> Tensor:
    """Whole numbers in the order of all floats, from -NaN over -0 and 0 to NaN."""
    if not x.is_floating_point():
        return x
    dtype = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    bits = x.contiguous().view(dtype)
    return torch.where(bits < 0, bits ^ torch.iinfo(dtype).max, bits)


@_rule("shift_left", "shift_right_arithmetic")
def _shift(equation: Any, a: Any, b: Any) -> Tensor:
    x, by = _tensor(a), _tensor(b)
    bits = 8 * x.element_size()
    is_left = equation.primitive.name == "shift_left"
    rest = torch.zeros_like(x) if is_left else torch.where(x < 0, -1, torch.zeros_like(x))
    safe = torch.where((by < 0) | (by >= bits), 0, by)
    return torch.where((by < 0) | (by >= bits), rest, x << safe if is_left else x >> safe)


@_rule("convert_element_type")
def _convert(equation: Any, x: Tensor) -> Tensor:
    dtype = _TYPES[equation.outvars[0].aval.dtype]
    if not x.is_floating_point() or dtype.is_floating_point or dtype == torch.bool:
        return x.to(dtype)
    if dtype in {torch.int64, torch.uint8, torch.int8, torch.int16}:
        low, high = float(torch.iinfo(dtype).min), float(torch.iinfo(dtype).max)
        wide = torch.nan_to_num(x.double(), nan=0.0).clamp(low, high)
        made = wide.to(dtype)
        return torch.where(wide >= high, torch.iinfo(dtype).max, made)
    wide = torch.nan_to_num(x.double(), nan=0.0)  # exact, and with room for the limits
    return wide.clamp(torch.iinfo(dtype).min, torch.iinfo(dtype).max).to(dtype)


@_rule("reduce_precision")
def _reduce_precision(equation: Any, x: Tensor) -> Tensor:
    sizes = equation.params["exponent_bits"], equation.params["mantissa_bits"]
    if sizes == (8, 7):
        return x.to(torch.bfloat16).to(x.dtype)
    if sizes == (8, 23) and x.dtype == torch.float32:
        return x
    raise _UnsupportedError(f"a reduction of precision to {sizes} bits has no rule")


@_rule("bitcast_convert_type")
def _bitcast(equation: Any, x: Tensor) -> Tensor:
    dtype = _TYPES[equation.outvars[0].aval.dtype]
    if dtype.itemsize != x.element_size() or torch.bool in {dtype, x.dtype}:
        raise _UnsupportedError("a bit cast between types of unlike sizes has no rule")
    return x.view(dtype)


@_rule("select_n")
def _select(_: Any, which: Any, *cases: Any) -> Tensor:
    which = _tensor(which)
    if which.dtype == torch.bool:
        return torch.where(which, _tensor(cases[1]), _tensor(cases[0]))
    made = _tensor(cases[0])
    for i, one in enumerate(cases[1:], start=1):
        made = torch.where(which >= i, _tensor(one), made)
    return made


@_rule("clamp")
def _clamp(_: Any, low: Any, x: Any, high: Any) -> Tensor:
    return torch.minimum(torch.maximum(_tensor(x), _tensor(low)), _tensor(high))


# Shapes.
@_rule("broadcast_in_dim")
def _broadcast(equation: Any, x: Tensor, *_: Any) -> Tensor:
    shape = equation.params["shape"]
    sizes = [1] * len(shape)
    for place, size in zip(equation.params["broadcast_dimensions"], x.shape, strict=True):
        sizes[place] = size
    return x.reshape(sizes).expand(shape)


@_rule("reshape")
def _reshape(equation: Any, x: Tensor, *_: Any) -> Tensor:
    order = equation.params["dimensions"]
    return (x if order is None else x.permute(order)).reshape(equation.params["new_sizes"])


@_rule("squeeze")
def _squeeze(equation: Any, x: Tensor) -> Tensor:
    return x.reshape(equation.outvars[0].aval.shape)


@_rule("transpose")
def _transpose(equation: Any, x: Tensor) -> Tensor:
    return x.permute(tuple(map(int, equation.params["permutation"])))


@_rule("rev")
def _rev(equation: Any, x: Tensor) -> Tensor:
    return torch.flip(x, tuple(map(int, equation.params["dimensions"])))


@_rule("concatenate")
def _concatenate(equation: Any, *parts: Any) -> Tensor:
    return torch.cat([_tensor(one) for one in parts], int(equation.params["dimension"]))


@_rule("stack")
def _stack(equation: Any, *parts: Any) -> Tensor:
    return torch.stack([_tensor(one) for one in parts], int(equation.params["axis"]))


@_rule("unstack")
def _unstack(equation: Any, x: Tensor) -> Sequence[Tensor]:
    return torch.unbind(x, int(equation.params["axis"]))


@_rule("split")
def _split(equation: Any, x: Tensor) -> Sequence[Tensor]:
    return torch.split(x, [int(one) for one in equation.params["sizes"]],
                       int(equation.params["axis"]))  # fmt: skip


@_rule("tile")
def _tile(equation: Any, x: Tensor) -> Tensor:
    return x.repeat(tuple(map(int, equation.params["reps"])))


@_rule("pad")
def _pad(equation: Any, x: Any, filler: Any) -> Tensor:
    x = _tensor(x)
    config = equation.params["padding_config"]
    lows, highs, insides = zip(*config, strict=True) if config else ((), (), ())
    is_cut_within = all(size + min(low, 0) + min(high, 0) >= 0
                        for size, low, high in zip(x.shape, lows, highs, strict=True))  # fmt: skip
    if type(filler) is not Tensor and not any(insides) and is_cut_within:
        flat = [int(size) for low, high, _ in reversed(config) for size in (low, high)]
        number = _operand(filler)
        value = _number(_here(number)) if isinstance(number, Tensor) else number
        return torch.nn.functional.pad(x, flat, value=value)
    shape = equation.outvars[0].aval.shape
    made = _tensor(filler).expand(shape).clone()
    to, of = [], []
    for size, low, inside, room in zip(x.shape, lows, insides, shape, strict=True):
        step = int(inside) + 1
        first = max(0, -(int(low) // step)) if low < 0 else 0  # of the rows that are not cut off
        places = range(int(low) + first * step, room, step)
        count = max(min(size - first, len(places)), 0)
        of.append(slice(first, first + count))
        begin = max(places.start, 0)
        to.append(slice(begin, begin + (count - 1) * step + 1 if count else begin, step))
    made[tuple(to)] = x[tuple(of)]
    return made


@_rule("slice")
def _slice(equation: Any, x: Tensor) -> Tensor:
    own = equation.params
    by = own["strides"] or [1] * x.ndim
    return x[tuple(map(slice, own["start_indices"], own["limit_indices"], by))]


def _starts(values: Sequence[Any], room: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Where a window begins, moved so that it is within; the program waits for what is on cards."""
    return [min(max(int(_here(one)), 0), most - size)
            for one, most, size in zip(values, room, sizes, strict=True)]  # fmt: skip


@_rule("dynamic_slice")
def _dynamic_slice(equation: Any, x: Any, *starts: Any) -> Tensor:
    x, sizes = _tensor(x), equation.params["slice_sizes"]
    for dim, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if size == x.shape[dim]:
            continue
        if type(start) is Tensor:
            first = start.clamp(0, x.shape[dim] - size).long()
            x = x.index_select(dim, first + torch.arange(size, device=device))
        else:
            (first,) = _starts([start], [x.shape[dim]], [size])
            x = x.narrow(dim, first, size)
    return x


@_rule("dynamic_update_slice")
def _dynamic_update_slice(_: Any, x: Any, update: Any, *starts: Any) -> Tensor:
    made, update = _tensor(x).clone(), _tensor(update)
    firsts = _starts(starts, made.shape, update.shape)
    pairs = zip(firsts, update.shape, strict=True)
    made[tuple(slice(first, first + size) for first, size in pairs)] = update
    return made


# Reductions, and what goes along a dimension.
def _dims(equation: Any) -> tuple[int, ...]:
    return tuple(map(int, equation.params["axes"]))


@_rule("reduce_sum")
def _sum(equation: Any, x: Tensor) -> Tensor:
    dims = _dims(equation)
    return torch.sum(x, dims, dtype=x.dtype) if dims else x


@_rule("reduce_prod")
def _prod(equation: Any, x: Tensor) -> Tensor:
    for dim in sorted(_dims(equation), reverse=True):
        x = torch.prod(x, dim, dtype=x.dtype)
    return x


@_rule("reduce_max", "reduce_min")
def _extreme(equation: Any, x: Tensor) -> Tensor:
    dims = _dims(equation)
    if 0 in x.shape:
        raise _UnsupportedError("the largest of no numbers has no rule")
    function = torch.amax if equation.primitive.name == "reduce_max" else torch.amin
    return function(x, dims) if dims else x


@_rule("reduce_and", "reduce_or")
def _logical(equation: Any, x: Tensor) -> Tensor:
    if x.dtype != torch.bool:
        raise _UnsupportedError("the and of whole numbers has no rule")
    function = torch.all if equation.primitive.name == "reduce_and" else torch.any
    for dim in sorted(_dims(equation), reverse=True):
        x = function(x, dim)
    return x


@_rule("argmax", "argmin")
def _argument(equation: Any, x: Tensor) -> Tensor:
    (dim,) = _dims(equation)
    function = torch.argmax if equation.primitive.name == "argmax" else torch.argmin
    if x.dtype == torch.bool:
        x = x.to(torch.uint8)
    return function(x, dim).to(_TYPES[equation.outvars[0].aval.dtype])


@_rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def _cumulative(equation: Any, x: Tensor) -> Tensor:
    name, dim = equation.primitive.name, int(equation.params["axis"])
    if equation.params["reverse"]:
        x = torch.flip(x, (dim,))
    if name in {"cumsum", "cumprod"}:
        made = getattr(torch, name)(x, dim, dtype=x.dtype)
    elif name == "cumlogsumexp":
        made = torch.logcumsumexp(x, dim)
    else:
        made = getattr(torch, name)(x, dim)[0]
    return torch.flip(made, (dim,)) if equation.params["reverse"] else made


@_rule("sort")
def _sort(equation: Any, *columns: Any) -> list[Tensor]:
    dim = int(equation.params["dimension"])
    columns = tuple(_tensor(one) for one in columns)
    order: Tensor | None = None
    for key in reversed(columns[: equation.params["num_keys"]]):
        now = key if order is None else torch.gather(key, dim, order)
        step = torch.sort(now, dim=dim, stable=True)[1]
        order = step if order is None else torch.gather(order, dim, step)
    return [torch.gather(one, dim, order) for one in columns]


@_rule("top_k")
def _top_k(equation: Any, x: Tensor) -> list[Tensor]:
    dim, count = int(equation.params["axis"]), int(equation.params["k"])
    values, places = torch.sort(x, dim=dim, descending=True, stable=True)
    dtype = _TYPES[equation.outvars[1].aval.dtype]
    return [values.narrow(dim, 0, count), places.narrow(dim, 0, count).to(dtype)]


# Products.
@_rule("dot_general")
def _dot_general(equation: Any, a: Any, b: Any) -> Tensor:
    dtype = _TYPES[equation.outvars[0].aval.dtype]
    if not dtype.is_floating_point:
        raise _UnsupportedError("a product of matrices of whole numbers has no rule")
    x, y = _tensor(a), _tensor(b)
    work = torch.promote_types(torch.promote_types(x.dtype, y.dtype), dtype)
    if x.dtype != y.dtype or x.dtype != work:
        x, y = x.to(work), y.to(work)
    (over_x, over_y), (batch_x, batch_y) = equation.params["dimension_numbers"]
    free_x = [i for i in range(x.ndim) if i not in {*over_x, *batch_x}]
    free_y = [i for i in range(y.ndim) if i not in {*over_y, *batch_y}]
    batch = [x.shape[i] for i in batch_x]
    shape = batch + [x.shape[i] for i in free_x] + [y.shape[i] for i in free_y]
    inner = math.prod(x.shape[i] for i in over_x)
    rows, columns = math.prod(x.shape[i] for i in free_x), math.prod(y.shape[i] for i in free_y)
    x = x.permute([*map(int, batch_x), *free_x, *map(int, over_x)])
    y = y.permute([*map(int, batch_y), *map(int, over_y), *free_y])
    if batch_x:
        count = math.prod(batch)
        made = torch.bmm(x.reshape(count, rows, inner), y.reshape(count, inner, columns))
    else:
        made = torch.mm(x.reshape(rows, inner), y.reshape(inner, columns))
    return made.reshape(shape).to(dtype)


@_rule("conv_general_dilated")
def _convolution(equation: Any, a: Any, b: Any) -> Tensor:
    own = equation.params
    dtype = _TYPES[equation.outvars[0].aval.dtype]
    rank = len(own["window_strides"])
    if not dtype.is_floating_point or not 1 <= rank <= 3:
        raise _UnsupportedError(f"a convolution of {dtype} over {rank} dimensions has no rule")
    spec = own["dimension_numbers"]
    x, kernel = _tensor(a).permute(spec.lhs_spec), _tensor(b).permute(spec.rhs_spec)
    work = torch.promote_types(torch.promote_types(x.dtype, kernel.dtype), dtype)
    x, kernel = _spread(x.to(work), own["lhs_dilation"]), kernel.to(work)
    groups = own["feature_group_count"]
    if own["batch_group_count"] > 1:  # each part of the batch has channels of its own
        groups = own["batch_group_count"]
        x = x.unflatten(0, (groups, -1)).transpose(0, 1).flatten(1, 2)
    strides, dilation, padding = own["window_strides"], own["rhs_dilation"], own["padding"]
    sizes = [equation.outvars[0].aval.shape[i] for i in spec.out_spec][2:]
    if groups == 1 and all(map(operator.gt, kernel.shape[2:], sizes)):
        made = _weight_gradient(x, kernel, strides, dilation, padding, sizes)
    else:
        x, even = _evenly_padded(x, padding)
        function = (torch.conv1d, torch.conv2d, torch.conv3d)[rank - 1]
        made = function(x, kernel, None, strides, even, dilation, groups)
    inverse = sorted(range(rank + 2), key=lambda i: spec.out_spec[i])
    return made.permute(inverse).to(dtype)


def _spread(x: Tensor, dilation: Sequence[int]) -> Tensor:
    """The image with zeros between its elements."""
    if all(one == 1 for one in dilation):
        return x
    sizes = [max((size - 1) * by + 1, 0) for size, by in zip(x.shape[2:], dilation, strict=True)]
    made = torch.zeros([*x.shape[:2], *sizes], dtype=x.dtype, device=x.device)
    made[(slice(None), slice(None), *(slice(None, None, by) for by in dilation))] = x
    return made


def _evenly_padded(x: Tensor, padding: Any) -> tuple[Tensor, list[int]]:
    """What torch pads at both ends of each dimension alike; all else is done to the image."""
    even = [max(min(low, high), 0) for low, high in padding]
    flat = [int(size) - one for (low, high), one in reversed(list(zip(padding, even, strict=True)))
            for size in (low, high)]  # fmt: skip
    return torch.nn.functional.pad(x, flat) if any(flat) else x, even


def _weight_gradient(
    x: Tensor, kernel: Tensor, strides: Any, dilation: Any, padding: Any, sizes: list[int]
) -> Tensor:
    """A convolution whose window is larger than its result: JAX's gradient of a kernel.

    As what it is, it is a sum over the batch, which the cards can split.
    """
    exact = []
    for (low, _), size, step, by, window, room in zip(
        padding, sizes, strides, dilation, kernel.shape[2:], x.shape[2:], strict=True
    ):
        exact.append((low, (window - 1) * by + 1 + (size - 1) * step - room - low))
    image, even = _evenly_padded(x, exact)
    images, gradient = image.transpose(0, 1), kernel.transpose(0, 1)
    shape = [gradient.shape[1], images.shape[1], *sizes]
    weight = torch.empty(shape, dtype=x.dtype, device=x.device)
    made = torch.ops.aten.convolution_backward(
        gradient, images, weight, None, list(dilation), even, list(strides), False,
        [0] * len(sizes), 1, [False, True, False],
    )[1]  # fmt: skip
    return made.transpose(0, 1)


# Windows.
def _windows(equation: Any, x: Tensor, filler: float) -> Tensor:
    """A view of the image with the elements of each window in the last dimensions."""
    own = equation.params
    if any(one != 1 for name in ("base_dilation", "window_dilation") for one in own.get(name, ())):
        raise _UnsupportedError("a dilated window has no rule")
    flat = [int(size) for both in reversed(own["padding"]) for size in both]
    if any(flat):
        x = torch.nn.functional.pad(x, flat, value=filler)
    for dim, (size, by) in enumerate(
        zip(own["window_dimensions"], own["window_strides"], strict=True)
    ):
        x = x.unfold(dim, size, by)
    return x


def _lowest(x: Tensor) -> Any:
    return -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min


@_rule("reduce_window_max")
def _window_max(equation: Any, x: Tensor) -> Tensor:
    return torch.amax(_windows(equation, x, _lowest(x)), tuple(range(x.ndim, 2 * x.ndim)))


@_rule("reduce_window_min")
def _window_min(equation: Any, x: Tensor) -> Tensor:
    highest = math.inf if x.is_floating_point() else torch.iinfo(x.dtype).max
    return torch.amin(_windows(equation, x, highest), tuple(range(x.ndim, 2 * x.ndim)))


@_rule("reduce_window_sum")
def _window_sum(equation: Any, x: Tensor) -> Tensor:
    dims = tuple(range(x.ndim, 2 * x.ndim))
    return torch.sum(_windows(equation, x, 0), dims, dtype=x.dtype)


@_rule("select_and_scatter_add")
def _select_and_scatter_add(equation: Any, source: Any, operand: Any) -> Tensor:
    """The gradient of a pool of maxima: each window gives its part to its first maximum."""
    if equation.params["select_prim"].name != "ge":
        raise _UnsupportedError("a gradient of windows other than of maxima has no rule")
    x, source = _tensor(operand), _tensor(source)
    own = equation.params
    best = _windows(equation, x, _lowest(x)).flatten(x.ndim).argmax(-1)
    room = [low + size + high for (low, high), size in zip(own["padding"], x.shape, strict=True)]
    place = torch.zeros_like(best)
    for dim in reversed(range(x.ndim)):
        size, by = own["window_dimensions"][dim], own["window_strides"][dim]
        begin = by * torch.arange(best.shape[dim], device=x.device)
        within = begin.reshape([-1 if i == dim else 1 for i in range(x.ndim)]) + best % size
        best = torch.div(best, size, rounding_mode="trunc")
        place = place + within * math.prod(room[dim + 1 :])
    made = torch.zeros(math.prod(room), dtype=x.dtype, device=x.device)
    made = made.index_add(0, place.reshape(-1), source.reshape(-1)).reshape(room)
    for dim, (low, _) in enumerate(own["padding"]):
        made = made.narrow(dim, low, x.shape[dim])
    return made


# Gather and scatter.
class _Places(NamedTuple):
    """Which elements of an operand a gather or scatter is about.

    Attributes:
        flat: Their numbers in the operand; first the indices' dimensions, then the window's.
        is_within: Whether each index is within the operand; None: all of them are.
    """

    flat: Tensor
    is_within: Tensor | None


def _places(
    shape: Sequence[int], indices: Tensor, sizes: Sequence[int], numbers: Any, mode: Any
) -> _Places:
    """Places from the numbers of dimensions of a gather; those of a scatter are renamed to them."""
    batch, steps_of = indices.shape[:-1], [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    flat, is_within = torch.zeros(batch, dtype=torch.int64, device=indices.device), None
    for column, dim in enumerate(numbers.start_index_map):
        index, most = indices[..., column].to(torch.int64), shape[dim] - sizes[dim]
        clamped = index.clamp(0, most)
        if mode != GatherScatterMode.CLIP:
            one = clamped == index
            is_within = one if is_within is None else is_within & one
        flat = flat + clamped * steps_of[dim]
    pairs = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    for dim, of_indices in pairs:
        count = torch.arange(batch[of_indices], device=indices.device) * steps_of[dim]
        flat = flat + count.reshape([-1 if i == of_indices else 1 for i in range(len(batch))])
    for dim in _window_dims(shape, numbers):
        flat = flat.unsqueeze(-1)
        flat = flat + torch.arange(sizes[dim], device=indices.device) * steps_of[dim]
    return _Places(flat, is_within)


def _window_dims(shape: Sequence[int], numbers: Any) -> list[int]:
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    return [dim for dim in range(len(shape)) if dim not in gone]


def _is_of_rows(shape: Sequence[int], sizes: Sequence[int], numbers: Any) -> bool:
    """Whether whole rows of the first dimension are meant, as of an embedding."""
    return (
        numbers.start_index_map == (0,) == numbers.collapsed_slice_dims
        and not numbers.operand_batching_dims
        and tuple(sizes[1:]) == tuple(shape[1:])
    )


def _is_along(indices: Tensor, shape: Sequence[int], numbers: Any) -> bool:
    """Whether one element of each row is meant, as of the label of each example."""
    others = [dim for dim in range(len(shape)) if dim not in numbers.start_index_map]
    return (
        len(numbers.start_index_map) == 1
        and numbers.collapsed_slice_dims == numbers.start_index_map
        and list(numbers.operand_batching_dims) == others
        and indices.ndim == len(shape) + 1
    )


def _clamped(places: Tensor, room: int, mode: Any) -> tuple[Tensor, Tensor | None]:
    """The indices of one dimension, all within it, and whether each one was."""
    index = places[..., 0].to(torch.int64)
    clamped = index.clamp(0, room - 1)
    return clamped, None if mode == GatherScatterMode.CLIP else clamped == index


class _Along:
    """The dimensions of an element of each row, in the order that torch's gather wants."""

    def __init__(self, indices: Tensor, numbers: Any) -> None:
        own = list(numbers.start_indices_batching_dims)
        rest = [dim for dim in range(indices.ndim - 1) if dim not in own]
        self.of_operand = [*numbers.operand_batching_dims, *numbers.start_index_map]
        self.of_indices = [*own, *rest]
        self.back = sorted(range(len(self.of_indices)), key=lambda i: self.of_indices[i])


@_rule("gather")
def _gather(equation: Any, operand: Any, indices: Any) -> Tensor:
    own = equation.params
    numbers, sizes = own["dimension_numbers"], own["slice_sizes"]
    x, places = _tensor(operand), _tensor(indices)
    mode = own["mode"]
    if mode == GatherScatterMode.PROMISE_IN_BOUNDS:
        mode = GatherScatterMode.CLIP  # as XLA does
    shape, batch = x.shape, places.shape[:-1]
    if math.prod(shape) == 0 or mode not in _MODES:
        raise _UnsupportedError(f"a gather of {tuple(shape)} with {mode} has no rule")
    if _is_of_rows(shape, sizes, numbers) or _is_along(places, shape, numbers):
        (dim,) = numbers.start_index_map
        index, is_within = _clamped(places, shape[dim], mode)
        if _is_of_rows(shape, sizes, numbers):
            rows = torch.nn.functional.embedding(index.reshape(-1), x.reshape(shape[0], -1))
            made = rows.reshape(*batch, *shape[1:])
        else:
            order = _Along(places, numbers)
            picked = torch.gather(x.permute(order.of_operand), -1, index.permute(order.of_indices))
            made = picked.permute(order.back)
    else:
        flat, is_within = _places(shape, places, sizes, numbers, mode)
        made = x.reshape(-1).index_select(0, flat.reshape(-1)).reshape(flat.shape)
    if is_within is not None:
        is_within = is_within.reshape(*batch, *[1] * (made.ndim - len(batch)))
        made = torch.where(is_within, made, _filler(x.dtype, own["fill_value"]))
    return made.permute(_mixed(made.ndim, numbers.offset_dims))


_MODES = {
    GatherScatterMode.FILL_OR_DROP,
    GatherScatterMode.CLIP,
    GatherScatterMode.PROMISE_IN_BOUNDS,
}


def _filler(dtype: torch.dtype, given: Any) -> Any:
    """What stands for an element that there is not."""
    if given is not None:
        return given
    if dtype.is_floating_point:
        return math.nan
    if dtype == torch.bool:
        return True
    return torch.iinfo(dtype).max if dtype == torch.uint8 else torch.iinfo(dtype).min


def _mixed(rank: int, window: Sequence[int]) -> list[int]:
    """The permutation that puts a window's dimensions, the last ones, among the others."""
    batch, own = iter(range(rank - len(window))), iter(range(rank - len(window), rank))
    return [next(own) if dim in window else next(batch) for dim in range(rank)]


class _Numbers(NamedTuple):
    """The dimensions of a scatter, by the names that a gather has for them."""

    collapsed_slice_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    operand_batching_dims: tuple[int, ...]
    start_indices_batching_dims: tuple[int, ...]


@_rule("scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max")
def _scatter(equation: Any, operand: Any, indices: Any, updates: Any) -> Tensor:
    own, name = equation.params, equation.primitive.name
    given = own["dimension_numbers"]
    numbers = _Numbers(
        given.inserted_window_dims, given.scatter_dims_to_operand_dims,
        given.operand_batching_dims, given.scatter_indices_batching_dims,
    )  # fmt: skip
    x, places, parts = _tensor(operand), _tensor(indices), _tensor(updates)
    if own["mode"] not in _MODES or (x.dtype == torch.bool and name != "scatter"):
        raise _UnsupportedError(f"a {name} of {x.dtype} with {own['mode']} has no rule")
    if 0 in x.shape or 0 in parts.shape:
        return x
    window = given.update_window_dims
    others = [dim for dim in range(parts.ndim) if dim not in window]
    parts = parts.permute([*others, *window])
    sizes, at = [1] * x.ndim, len(others)
    for dim in _window_dims(x.shape, numbers):
        sizes[dim], at = parts.shape[at], at + 1
    if name == "scatter-sub":
        name, parts = "scatter-add", -parts
    if name == "scatter-add":
        return _added(x, places, parts, sizes, numbers, own["mode"])
    flat, is_within = _places(x.shape, places, sizes, numbers, own["mode"])
    count = x.numel()
    if is_within is not None:  # the others go to a place behind the last one
        shape = [*is_within.shape, *[1] * (flat.ndim - is_within.ndim)]
        flat = torch.where(is_within.reshape(shape), flat, count)
    room = torch.cat([x.reshape(-1), torch.zeros(1, dtype=x.dtype, device=x.device)])
    flat, parts = flat.reshape(-1), parts.reshape(-1)
    if name == "scatter":
        made = room.index_put((flat,), parts)
    else:
        how = {"scatter-mul": "prod", "scatter-min": "amin", "scatter-max": "amax"}[name]
        made = room.scatter_reduce(0, flat, parts, how, include_self=True)
    return made[:count].reshape(x.shape)


def _added(
    x: Tensor, places: Tensor, parts: Tensor, sizes: list[int], numbers: Any, mode: Any
) -> Tensor:
    """A scatter that adds: what is out of range adds nothing."""
    batch = places.ndim - 1
    if _is_of_rows(x.shape, sizes, numbers) or _is_along(places, x.shape, numbers):
        (dim,) = numbers.start_index_map
        index, is_within = _clamped(places, x.shape[dim], mode)
    else:
        index, is_within = _places(x.shape, places, sizes, numbers, mode)
    if is_within is not None:
        shape = [*is_within.shape, *[1] * (parts.ndim - batch)]
        parts = torch.where(is_within.reshape(shape), parts, torch.zeros_like(parts))
    if _is_of_rows(x.shape, sizes, numbers) and x.is_floating_point():
        rows = parts.reshape(index.numel(), -1)
        gradient = torch.ops.aten.embedding_dense_backward(
            rows, index.reshape(-1), x.shape[0], -1, False
        )
        return x + gradient.reshape(x.shape)
    if _is_along(places, x.shape, numbers):
        order = _Along(places, numbers)
        made = torch.scatter_add(
            x.permute(order.of_operand), -1, index.permute(order.of_indices),
            parts.permute(order.of_indices),
        )  # fmt: skip
        back = sorted(range(x.ndim), key=lambda i: order.of_operand[i])
        return made.permute(back)
    if _is_of_rows(x.shape, sizes, numbers):
        index, is_within = _places(x.shape, places, sizes, numbers, GatherScatterMode.CLIP)
    return x.reshape(-1).index_add(0, index.reshape(-1), parts.reshape(-1)).reshape(x.shape)
