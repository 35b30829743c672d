"""Patches of torch: what a device written in Python cannot tell torch in another way.

Each is used only for tensors of the device, or where torch would otherwise raise an error that
nobody can avoid. All are done when torch gets the device: some ways to use it first end here.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook

from penstock.card.device import module, place, steps
from penstock.card.device.buffer import Buffer
from penstock.card.device.random import own_generators
from penstock.card.device.tensors import DEVICE, check_index, new_storage

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME = "penstock"


def patch() -> None:
    """Applies all patches, once."""
    _patch_modules()
    _patch_sharding()
    _patch_storage()
    _patch_generator()
    _patch_pinning()
    _patch_sharing()
    _patch_accelerator()
    _patch_backward()
    _patch_optimizers()
    _patch_compile()


def _is_own(device: object) -> bool:
    return device is not None and torch.device(device).type == _NAME


def _patch_modules() -> None:
    """`module.to("penstock")` keeps the parameters that the module has.

    Otherwise torch makes new ones: tied ones are no longer tied, and an optimizer that was made
    before goes on with the old ones, without a word.
    """
    torch.__future__.set_swap_module_params_on_conversion(True)
    former = torch.nn.Module._apply

    def _apply(self: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
        lazy = [one for one in self._parameters.values() if one is not None and is_lazy(one)]
        kinds = [type(one) for one in lazy]
        try:
            module = former(self, fn if isinstance(fn, _Sharding) else _Sharding(fn), recurse)
        except RuntimeError as error:
            if "Couldn't swap" not in str(error) or "delete" in str(error):
                raise
            raise RuntimeError(
                f"{error}, as something else refers to it, such as the result of a forward pass "
                "that had no backward pass: delete that first, or evaluate under torch.no_grad()"
            ) from error
        for one, kind in zip(lazy, kinds, strict=True):
            one.__class__ = kind  # exchanging tensors makes plain parameters of them
        return module

    torch.nn.Module._apply = _apply


class _Sharding:
    """What a module applies to its parameters; parameters on the device are sharded afterwards."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._function = function

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        result = self._function(tensor)
        if isinstance(tensor, torch.nn.Parameter):
            _shard(result)
        return result


def _shard(parameter: torch.Tensor | None) -> None:
    """Hands a parameter of a module to `sharding`, if it is on the device and has a content."""
    if parameter is None or parameter.device.type != _NAME or is_lazy(parameter):
        return
    if hasattr(parameter.untyped_storage(), "buffer"):  # not of a compiler, which has none
        module._session().sharding.add(parameter)


def _patch_sharding() -> None:
    """Parameters are sharded when modules get them, and an optimizer's state when it is loaded."""
    torch.nn.modules.module.register_module_parameter_registration_hook(
        lambda _, __, parameter: _shard(parameter)
    )
    optimizer = torch.optim.Optimizer
    former = optimizer._process_value_according_to_param_policy

    def process(param: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = former(param, value, *args, **kwargs)
        if _is_own(param.device) and _is_own(result.device):
            module._session().sharding.add_like(result, param)
        return result

    optimizer._process_value_according_to_param_policy = staticmethod(process)


def _patch_storage() -> None:
    """`torch.UntypedStorage(n, device="penstock")`, which torch.load calls."""
    former = torch.UntypedStorage.__new__

    def new(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if not _is_own(device):
            if device is not None:
                kwargs["device"] = device
            return former(cls, *args, **kwargs)
        module._lazy_init()
        size_bytes = int(args[0]) if args and isinstance(args[0], int) else 0
        if args and not isinstance(args[0], int):
            raise TypeError("a storage of device penstock is made of a size, then filled by copy_")
        return new_storage(Buffer(size_bytes, None, size_bytes))

    torch.UntypedStorage.__new__ = new
    write = torch.UntypedStorage._write_file  # of torch.save in its former format

    def _write_file(self: torch.UntypedStorage, *args: Any) -> None:
        write(self.cpu() if self.device.type == _NAME else self, *args)

    torch.UntypedStorage._write_file = _write_file
    read = torch.UntypedStorage._set_from_file  # of torch.load, likewise

    def _set_from_file(self: torch.UntypedStorage, *args: Any) -> Any:
        if self.device.type != _NAME:
            return read(self, *args)
        staged = torch.UntypedStorage(self.nbytes())
        read(staged, *args)
        return self.copy_(staged)

    torch.UntypedStorage._set_from_file = _set_from_file


_former_generator = torch.Generator


class _GeneratorKind(type(torch.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _former_generator)


class Generator(torch.Generator, metaclass=_GeneratorKind):  # type: ignore[misc]
    """torch.Generator, also for device penstock: a generator of seeds, one for each operation."""

    def __new__(cls, device: Any = "cpu") -> Any:  # noqa: D102 - as torch.Generator
        if not _is_own(device):
            return _former_generator(device)
        own = super().__new__(cls, "cpu")
        own_generators[own._cdata] = own
        return own

    @property
    def device(self) -> torch.device:
        """The device whose tensors it fills."""
        return DEVICE


def _patch_generator() -> None:
    torch.Generator = Generator


def _patch_pinning() -> None:
    """Pinned memory: the cards take what they get in any memory, so pinning changes nothing."""

    def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        del device
        if self.device.type != "cpu":
            raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
        return self

    torch.Tensor.pin_memory = pin_memory


def _patch_sharing() -> None:
    """Sharing with other processes and libraries, which would get an address without content."""
    storage = torch.UntypedStorage
    for owner, name in (
        (torch.Tensor, "share_memory_"), (storage, "share_memory_"), (storage, "_share_fd_cpu_"),
        (storage, "_share_filename_cpu_"), (torch.Tensor, "__dlpack__"),
        (torch.Tensor, "__dlpack_device__"), (torch.utils.dlpack, "to_dlpack"),
        (torch, "to_dlpack"),
    ):  # fmt: skip
        setattr(owner, name, _unshared(getattr(owner, name)))


def _unshared(former: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(former)
    def refusing(own: Any, *args: Any, **kwargs: Any) -> Any:
        if own.device.type == _NAME:
            raise RuntimeError(
                "a tensor of device penstock cannot be shared with other processes or libraries: "
                "share tensor.cpu() instead"
            )
        return former(own, *args, **kwargs)

    return refusing


def _patch_accelerator() -> None:
    """`torch.accelerator.synchronize`, which asks for hooks that only C++ has."""
    former = torch.accelerator.synchronize

    def synchronize(device: Any = None, /) -> None:
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is None or accelerator.type != _NAME:
            former(device)
        else:
            module.synchronize()

    torch.accelerator.synchronize = synchronize
    choose = torch.accelerator.set_device_index

    def set_device_index(device: Any, /) -> None:
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is not None and accelerator.type == _NAME:
            index = device if isinstance(device, int) else torch.device(device).index
            check_index(torch.device(_NAME, max(index or 0, 0)))
        choose(device)

    torch.accelerator.set_device_index = set_device_index
    _patch_memory()


def _patch_memory() -> None:
    """What torch.accelerator says of memory, for which it asks an allocator that only C++ has."""
    accelerator = torch.accelerator
    own: dict[str, Callable[..., Any]] = {
        "memory_allocated": module.memory_allocated,
        "memory_reserved": module.memory_allocated,
        "max_memory_allocated": module.max_memory_allocated,
        "max_memory_reserved": module.max_memory_allocated,
        "get_memory_info": module.mem_get_info,
        "empty_cache": module.empty_cache,
    }
    others = ("memory_stats", "reset_peak_memory_stats", "reset_accumulated_memory_stats")

    def refuse(*_: Any) -> Any:
        raise NotImplementedError(
            "device penstock counts only the bytes of tensors: use "
            "torch.penstock.memory_allocated() or max_memory_allocated()"
        )

    for name in (*own, *others):
        setattr(accelerator, name, _chosen(getattr(accelerator, name), own.get(name, refuse)))


def _chosen(former: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(former)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        accelerator = torch.accelerator.current_accelerator()
        is_here = accelerator is not None and accelerator.type == _NAME
        return own(*args) if is_here else former(*args, **kwargs)

    return chosen


def _patch_backward() -> None:
    """Counts steps, sees the loss, and raises errors of hooks that are out of the way (`place`)."""
    former = torch.autograd.graph._engine_run_backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        steps.count += 1
        begins = args[0]
        # Not of torch.autograd.grad, whose gradients are a part of a loss.
        if not kwargs.get("accumulate_grad") or not any(map(_is_on_cards, begins)):
            return run(*args, **kwargs)
        passes = module._session().passes
        passes.backward(begins[0] if len(begins) == 1 else None)
        try:
            return run(*args, **kwargs)
        finally:
            passes.ended()

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return former(*args, **kwargs)
        except SystemError:
            if not place.errors_of_hooks:
                raise
            error = place.errors_of_hooks.pop()
        raise error

    torch.autograd.graph._engine_run_backward = run_backward
    torch.autograd._engine_run_backward = run_backward


def _is_on_cards(begin: Any) -> bool:
    """Whether a backward pass begins at a tensor on the cards; a compiler's has no content."""
    if not isinstance(begin, torch.Tensor) or not _is_own(begin.device):
        return False
    return hasattr(begin.untyped_storage(), "buffer")


def _patch_optimizers() -> None:
    """The cards' parts of the work are adapted between steps, when few tensors are split."""

    def ended(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = optimizer.param_groups[0]["params"] if optimizer.param_groups else ()
        if parameters and _is_own(parameters[0].device):
            module._session().step_ended()

    register_optimizer_step_post_hook(ended)


def _patch_compile() -> None:
    """torch.compile: inductor, its usual backend, makes no code for the device.

    Graphs with tensors of the device are run by the device, operation by operation; forward and
    backward are captured and cut as for inductor, and all other graphs go to inductor.
    """
    wrapper = torch._TorchCompileInductorWrapper
    former = wrapper.__call__

    def call(self: Any, graph: torch.fx.GraphModule, given: list[Any]) -> Any:
        if not _is_of_device(graph, given):
            return former(self, graph, given)
        from torch._dynamo.backends.debugging import aot_eager

        return aot_eager(graph, given)

    wrapper.__call__ = call


def _is_of_device(graph: torch.fx.GraphModule, given: list[Any]) -> bool:
    """Whether a graph takes or makes tensors of the device."""
    made = [node.meta.get("example_value") for node in graph.graph.nodes]
    tensors = [*given, *graph.parameters(), *graph.buffers(), *made]
    return any(_is_own(one.device) for one in tensors if isinstance(one, torch.Tensor))
