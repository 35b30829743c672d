"""The name "cuda" for the virtual card: programs that were written for one GPU, as they are.

Only a program whose starter wants it so ($PENSTOCK_CARD_AS=cuda, as `penstock train run` sets it):
`torch.cuda.is_available()` is true there, and every way to name a device leads from "cuda" to
"penstock". What torch.cuda has and the card has not is refused with what to do instead.
"""

from __future__ import annotations

import atexit
import contextlib
import copyreg
import functools
import sys
import types
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import _device

from penstock.card.device import cuda_streams, cuda_types, module, steps
from penstock.card.device.warn import warn

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME, _CUDA = "penstock", "cuda"
_Device: Any = torch.device
CAPABILITY = (8, 0)  # which programs ask to choose types of numbers: bfloat16 is there
_REFUSED = (
    "graph", "CUDAGraph", "make_graphed_callables", "caching_allocator_alloc", "memory_snapshot",
    "comm", "ExternalStream", "set_per_process_memory_fraction", "utilization", "temperature",
    "power_draw", "clock_rate", "list_gpu_processes", "memory_usage", "device_memory_used",
    "current_blas_handle", "current_solver_handle", "get_per_process_memory_fraction",
)  # fmt: skip
_METHODS = (
    "to",
    "new_empty",
    "new_full",
    "new_ones",
    "new_tensor",
    "new_zeros",
    "new_empty_strided",
)
_LIKE = ("empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like",
         "zeros_like", "frombuffer")  # fmt: skip

_AUTOCAST = (
    "get_autocast_dtype", "is_autocast_enabled", "set_autocast_dtype", "set_autocast_enabled",
)  # fmt: skip


def take_name() -> None:
    """Makes "cuda" another name of the device, once, in the whole program."""
    torch.device = _CudaOrOther
    graph = sys.modules.get("torch.fx.graph")
    if graph is not None:  # it knows torch.device by what it was when torch was imported
        graph._register_custom_builtin("device", "from torch import device", torch.device)
    makers = {one.__name__ for one in _device._device_constructors()}
    for name in sorted({*makers, *_LIKE}):
        place: Any = torch.fft if name.startswith("fft_") else torch
        own = name.removeprefix("fft_")
        if hasattr(place, own):
            setattr(place, own, _named(getattr(place, own)))
    for name in _METHODS:
        setattr(torch.Tensor, name, _named(getattr(torch.Tensor, name)))
    torch.Tensor.cuda = _cuda
    torch.Tensor.record_stream = lambda *_: None  # memory is freed in the order of the program
    torch.Tensor.is_cuda = property(lambda self: self.device.type in {_NAME, _CUDA})
    torch.nn.Module.cuda = lambda self, device=None: self._apply(lambda one: one.cuda(device))
    torch.nn.Module.to = _named(torch.nn.Module.to)
    torch.load = _named(torch.load)
    torch.set_default_device = _named(torch.set_default_device)
    for name in _AUTOCAST:
        setattr(torch, name, _named(getattr(torch, name)))
    torch.is_autocast_enabled = _of_cuda_if_not_said(torch.is_autocast_enabled)
    kinds: list[Any] = [torch.autocast, torch.amp.GradScaler, _device.DeviceContext]
    for kind in kinds:
        kind.__init__ = _named(kind.__init__)
    for kind in (torch.UntypedStorage, torch.Generator):
        kind.__new__ = _named(kind.__new__)
    torch.serialization.register_package(5, _tag, _restored)
    copyreg.pickle(_Device, _reduced)
    cuda_types.patch()
    _patch_profiler()
    torch.UntypedStorage.cuda = lambda self, *_, **__: self.to(device=_Device(_NAME))
    torch.distributed.init_process_group = _without_nccl(torch.distributed.init_process_group)
    _fill_module()
    register_optimizer_step_pre_hook(_refuse_cpu)
    atexit.register(_warn_of_cpu)


def _refuse_cpu(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """A program that was given cards and trains on the CPU instead would not notice.

    Raises:
        RuntimeError: the first parameters that it trains are on the CPU, and nothing on the cards.
    """
    if module.is_initialized():
        return
    parameters = optimizer.param_groups[0]["params"] if optimizer.param_groups else ()
    if parameters and parameters[0].device.type == "cpu":
        raise RuntimeError(
            "this program has cards and trains on the CPU: move the model and each batch to the "
            'device, as in model.to("cuda"), or start it without cards'
        )


def _warn_of_cpu() -> None:
    """The same for a program that has no optimizer of torch's, when it has ended."""
    if steps.count and not module.is_initialized():
        warn("this program has trained on the CPU, and its cards did nothing")


def _patch_profiler() -> None:
    """The profiler of torch sees what the program does; its part for CUDA needs NVIDIA's driver."""
    profile = torch.autograd.profiler.profile
    former: Any = profile.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("use_device") in {_CUDA, _NAME}:
            kwargs["use_device"] = None
            warn("torch.profiler does not see the cards: `penstock card trace` shows their work")
        former(self, *args, **kwargs)

    profile.__init__ = init


def _mapped(device: Any) -> Any:
    """A device as torch is to get it: "cuda" and "cuda:0" are the card."""
    if isinstance(device, str) and device.partition(":")[0] == _CUDA:
        return device.replace(_CUDA, _NAME, 1)
    if type(device) is _Device and device.type == _CUDA:
        return _Device(_NAME, device.index or 0)
    return device


def _named(former: Callable[..., Any]) -> Callable[..., Any]:
    """A function that takes devices in any place, by any name."""

    @functools.wraps(former)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name in ("device", "map_location", "device_type"):
            if name in kwargs:
                kwargs[name] = _mapped(kwargs[name])
        return former(*[_mapped(one) if type(one) in _NAMES else one for one in args], **kwargs)

    return call


_NAMES = {str, _Device}


def _of_cuda_if_not_said(former: Callable[[str], bool]) -> Callable[..., bool]:
    """torch.is_autocast_enabled() without a device asks for CUDA."""

    def is_autocast_enabled(device_type: str = _CUDA) -> bool:
        return former(device_type)

    return is_autocast_enabled


def _reduced(device: torch.device) -> tuple[Any, ...]:
    """What pickle writes for a device: what other programs know."""
    name = _CUDA if device.type == _NAME else device.type
    return torch.device, ((name,) if device.index is None else (name, device.index))


def _tag(storage: Any) -> str | None:
    """What torch.save writes for a storage on the card: what other programs know."""
    return f"{_CUDA}:0" if storage.device.type == _NAME else None


def _restored(storage: Any, location: str) -> Any:
    """The storage where torch.load is to put it, if that is the card."""
    if location.partition(":")[0] in {_NAME, _CUDA}:
        return storage.to(device=_Device(_NAME, 0))
    return None


def _without_nccl(former: Callable[..., Any]) -> Callable[..., Any]:
    """torch.distributed without NCCL, which ends a process that has no NVIDIA driver."""

    @functools.wraps(former)
    def call(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        if backend is None or "nccl" in str(backend).lower():
            raise RuntimeError(
                "this program runs once, on all its cards: leave torch.distributed and "
                "DistributedDataParallel out, as for one GPU, and do not start it with torchrun"
            )
        return former(backend, *args, **kwargs)

    return call


class _DeviceKind(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Device)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _Device)


class _CudaOrOther(metaclass=_DeviceKind):
    """torch.device, which makes the card of "cuda"."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        kwargs = {name: _mapped(value) for name, value in kwargs.items()}
        return _Device(*map(_mapped, args), **kwargs)


_CudaOrOther.__name__ = _CudaOrOther.__qualname__ = "device"
_CudaOrOther.__module__ = "torch"


def _cuda(self: torch.Tensor, device: Any = None, *_: Any, **__: Any) -> torch.Tensor:
    """`tensor.cuda()`: the tensor on the card."""
    module.set_device(device if device is not None else 0)
    return self.to(_NAME)


def _properties(device: Any = None) -> types.SimpleNamespace:
    del device
    free_bytes, total_bytes = module.mem_get_info()
    del free_bytes
    return types.SimpleNamespace(
        name=module.get_device_name(), major=CAPABILITY[0], minor=CAPABILITY[1],
        total_memory=total_bytes, multi_processor_count=1, warp_size=32,
    )  # fmt: skip


def _memory_stats(device: Any = None) -> dict[str, int]:
    del device
    found = {"num_alloc_retries": 0, "num_ooms": 0}
    for name in ("allocated", "reserved", "active"):
        found[f"{name}_bytes.all.current"] = module.memory_allocated()
        found[f"{name}_bytes.all.peak"] = module.max_memory_allocated()
    return found


def _fill_module() -> None:
    """Puts what the card has into torch.cuda."""
    cuda = torch.cuda
    own: dict[str, Any] = {
        name: value for name, value in vars(module).items()
        if getattr(value, "__module__", "").startswith("penstock.") and not name.startswith("_")
    }  # fmt: skip
    answers: dict[str, Any] = {
        "Event": cuda_streams.Event,
        "Stream": cuda_streams.Stream,
        "current_stream": cuda_streams.current_stream,
        "default_stream": cuda_streams.default_stream,
        "set_stream": cuda_streams.set_stream,
        "stream": cuda_streams.stream,
        "device_of": lambda _: contextlib.nullcontext(),
        "get_device_properties": _properties,
        "get_device_capability": lambda *_: CAPABILITY,
        "is_current_stream_capturing": lambda: False,
        "memory_reserved": module.memory_allocated,
        "max_memory_reserved": module.max_memory_allocated,
        "memory_stats": _memory_stats,
        "reset_peak_memory_stats": lambda *_: None,
        "reset_accumulated_memory_stats": lambda *_: None,
        "reset_max_memory_allocated": lambda *_: None,
        "memory_summary": lambda *_, **__: module.get_device_name(),
        "get_rng_state_all": lambda: [module.get_rng_state()],
        "set_rng_state_all": lambda states: module.set_rng_state(states[0]),
        "can_device_access_peer": lambda *_: False,
        "ipc_collect": lambda: None,
        "_lazy_init": module._lazy_init,
        "init": module._lazy_init,
    }
    for name in ("cards_text", "TYPE_CHECKING", "annotations"):
        own.pop(name, None)
    own |= answers | {name: _refusing(name) for name in _REFUSED} | cuda_types.of_module()
    parts = [part for name, part in sys.modules.items() if name.startswith("torch.cuda.")]
    for name, value in own.items():
        former = vars(cuda).get(name, value)
        for part in parts:  # torch.cuda.random and others have some of the same functions
            if vars(part).get(name) is former:
                setattr(part, name, value)
        setattr(cuda, name, value)
        if not hasattr(module, name):  # programs also ask getattr(torch, device.type)
            setattr(module, name, value)


def _refusing(name: str) -> Any:
    """A function, or for a class one that makes no object: annotations and isinstance name it."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(
            f"torch.cuda.{name} is of one GPU, and this program runs on a virtual card of several: "
            "leave it out, or ask torch.cuda.get_device_name() first"
        )

    is_kind = isinstance(getattr(torch.cuda, name, None), type)
    return type(name, (), {"__new__": refuse}) if is_kind else refuse
