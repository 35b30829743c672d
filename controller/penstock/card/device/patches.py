"""Patches of torch: what a device written in Python cannot tell torch in another way.

Each is used only for tensors of the device, or where torch would otherwise raise an error that
nobody can avoid. All are done when torch gets the device: some ways to use it first end here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import is_lazy

from penstock.card.device import module, place
from penstock.card.device.buffer import Buffer
from penstock.card.device.random import own_generators
from penstock.card.device.tensors import DEVICE, new_storage

_NAME = "penstock"


def patch() -> None:
    """Applies all patches, once."""
    _patch_modules()
    _patch_storage()
    _patch_generator()
    _patch_pinning()
    _patch_sharing()
    _patch_accelerator()
    _patch_backward()
    _patch_compiler()
    _refuse_sparse()


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
            module = former(self, fn, recurse)
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
    """Sharing with other processes, which would get a tensor without content."""
    former = torch.Tensor.share_memory_

    def share_memory_(self: torch.Tensor) -> torch.Tensor:
        if self.device.type == _NAME:
            raise RuntimeError(
                "a tensor of device penstock cannot be shared with other processes: share "
                "tensor.cpu() instead"
            )
        return former(self)

    torch.Tensor.share_memory_ = share_memory_
    former_dlpack = torch.Tensor.__dlpack__

    def dlpack(self: torch.Tensor, **options: Any) -> Any:
        if self.device.type == _NAME:
            raise BufferError(
                "a tensor of device penstock lies on several cards, which DLPack cannot say: pass "
                "tensor.cpu() on instead"
            )
        return former_dlpack(self, **options)

    torch.Tensor.__dlpack__ = dlpack
    torch.utils.dlpack.to_dlpack = lambda tensor: tensor.__dlpack__()


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


def _patch_backward() -> None:
    """Errors of hooks in backward, which `place.register_guard` has taken out of torch's way."""
    former = torch.autograd.graph._engine_run_backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        try:
            return former(*args, **kwargs)
        except SystemError:
            if not place.errors_of_hooks:
                raise
            error = place.errors_of_hooks.pop()
        raise error

    torch.autograd.graph._engine_run_backward = run_backward
    torch.autograd._engine_run_backward = run_backward


def _patch_compiler() -> None:
    """`torch.compile` with its default backend, which has no code generator for the device.

    The graphs that it captures run on the device operation by operation.
    """
    wrapper = torch._TorchCompileInductorWrapper
    former = wrapper.__call__

    def call(self: Any, model_: Any, inputs_: Any) -> Any:
        if any(isinstance(one, torch.Tensor) and one.device.type == _NAME for one in inputs_):
            from torch._dynamo.backends.debugging import aot_eager

            return aot_eager(model_, inputs_)
        return former(self, model_, inputs_)

    wrapper.__call__ = call


_sparse = [torch.library.Library("_", "IMPL", key)
           for key in ("SparsePrivateUse1", "SparseCsrPrivateUse1")]  # fmt: skip


def _refuse_sparse() -> None:
    """Sparse tensors, which no card has."""

    def refuse(operation: Any, *_: Any, **__: Any) -> None:
        raise NotImplementedError(
            f"device penstock has no sparse tensors (in {operation.name()}): keep them on the CPU, "
            "or use tensor.to_dense()"
        )

    for library in _sparse:
        library.fallback(refuse)
