"""Transfers: tensors from the program's memory to the cards, back, and from one type to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from penstock.card.device.kernel import Kernel
from penstock.card.device.resizing import resize
from penstock.card.device.signature import Signature
from penstock.card.device.tensors import (
    buffer_of,
    check_index,
    contiguous_stride,
    extent,
    new_tensor,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.card.device.session import Session

aten = torch.ops.aten


def transfer_kernels(session: Callable[[], Session]) -> dict[str, Callable[..., Any]]:
    """The kernels that move content, by the operations' names."""
    on_cards = Kernel(Signature(aten.copy_.default), session)
    set_storage = {1: aten.set_.source_Storage, 4: aten.set_.source_Storage_storage_offset}

    def copy_(to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        """`to.copy_(source)`, at least one of which is on the device."""
        del non_blocking  # a copy to the cards takes the content before it returns
        if to.numel() == 0 and source.numel() == 0:
            return to
        if to.device.type != "penstock":
            return to.copy_(to_cpu(session(), source))
        if source.device.type == "penstock":
            return on_cards(to, source)  # type: ignore[return-value]
        if source.device.type != "cpu":
            source = source.cpu()
        upload(session(), source, to)
        return to

    def upload(own: Session, source: torch.Tensor, to: torch.Tensor) -> None:
        source = source.to(to.dtype).expand(to.shape).resolve_conj().resolve_neg()
        buffer = buffer_of(to)
        is_all = not to.is_conj() and not to.is_neg() and to.storage_offset() == 0 and (
            extent(tuple(to.shape), to.stride()) * to.element_size() == buffer.size_bytes
        ) and is_dense(to)  # fmt: skip
        if is_all:
            staged = torch.empty_strided(to.shape, to.stride(), dtype=to.dtype)
            own.upload(staged.copy_(source), to)
            return
        staged_to = new_tensor(tuple(to.shape), contiguous_stride(tuple(to.shape)), to.dtype, None)
        own.upload(source.contiguous(), staged_to)
        on_cards(to, staged_to)

    def to_copy(
        own: torch.Tensor,
        *,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format | None = None,
    ) -> torch.Tensor:
        # torch's own asks for pinned memory if the program need not wait for a copy to the CPU.
        del pin_memory, non_blocking
        made = torch.empty_like(
            own, dtype=dtype, layout=layout, device=device,
            memory_format=memory_format or torch.preserve_format,
        )  # fmt: skip
        return made.copy_(own)

    def local_scalar_dense(tensor: torch.Tensor) -> Any:
        return to_cpu(session(), tensor).item()

    def empty_strided(
        size: list[int],
        stride: list[int],
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
    ) -> torch.Tensor:
        del layout, pin_memory
        check_index(device)
        dtype = dtype or torch.get_default_dtype()
        return new_tensor(tuple(size), tuple(stride), dtype, None)

    def empty(
        size: list[int],
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
        memory_format: torch.memory_format | None = None,
    ) -> torch.Tensor:
        check_index(device)
        if layout not in {None, torch.strided}:
            raise NotImplementedError(
                f"device penstock has no tensors of layout {layout}: keep them on the CPU, or use "
                "dense ones"
            )
        if pin_memory:
            raise RuntimeError("only tensors on the CPU can be pinned")
        stride = torch.empty(size, device="meta", memory_format=memory_format).stride()
        return new_tensor(tuple(size), stride, dtype or torch.get_default_dtype(), None)

    def efficientzerotensor(size: list[int], **options: Any) -> torch.Tensor:
        options.pop("device", None)
        return torch.zeros(size, device="penstock", **options)

    def resize_(
        tensor: torch.Tensor, size: list[int], memory_format: torch.memory_format | None = None
    ) -> torch.Tensor:
        wanted = torch.empty(size, device="meta", memory_format=memory_format)
        needed = extent(tuple(size), wanted.stride()) * tensor.element_size()
        buffer = buffer_of(tensor)
        if needed <= buffer.size_bytes:
            set_storage[4](tensor, tensor.untyped_storage(), 0, tuple(size), wanted.stride())
            return tensor
        former = tensor.detach().reshape(-1) if tensor.numel() else None
        resize(tensor, tuple(size), wanted.stride())
        if former is not None:
            tensor.view(-1)[: former.numel()].copy_(former)
        return tensor

    return {
        "copy_": copy_,
        "_to_copy": to_copy,
        "record_stream": lambda _, __: None,  # the cards free memory in the order of the calls
        "_local_scalar_dense": local_scalar_dense,
        "empty.memory_format": empty,
        "empty_strided": empty_strided,
        "resize_": resize_,
        "_efficientzerotensor": efficientzerotensor,
    }


def index_kernels(session: Callable[[], Session]) -> dict[str, Callable[..., Any]]:
    """Indexing, which takes indices on the CPU as well, as torch does for every device."""

    def taking(name: str) -> Callable[..., Any]:
        packet, _, overload = name.partition(".")
        on_cards = Kernel(Signature(getattr(getattr(aten, packet), overload or "default")), session)

        def kernel(own: torch.Tensor, indices: list[torch.Tensor | None], *others: Any) -> object:
            moved = [
                one.to(own.device) if one is not None and one.device.type == "cpu" else one
                for one in indices
            ]
            return on_cards(own, moved, *others)

        return kernel

    names = ("index.Tensor", "_unsafe_index.Tensor", "index_put_", "_index_put_impl_",
             "_unsafe_index_put", "index_put")  # fmt: skip
    return {name: taking(name) for name in names}


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements of a tensor lie without gaps, in whatever order of its dimensions."""
    return tensor.numel() == extent(tuple(tensor.shape), tensor.stride()) and not (
        torch._debug_has_internal_overlap(tensor) == 1
    )


def to_cpu(session: Session, tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU of a tensor of the device, with the same strides. Raises `CardError`."""
    size, stride, dtype = tuple(tensor.shape), tensor.stride(), tensor.dtype
    if tensor.numel() == 0:
        return torch.empty_strided(size, stride, dtype=dtype)
    first = tensor.storage_offset() * dtype.itemsize
    content = session.download(
        buffer_of(tensor), first, first + extent(size, stride) * dtype.itemsize, dtype
    )
    result = torch.frombuffer(content, dtype=torch.uint8).view(dtype).as_strided(size, stride)
    if tensor.is_conj():
        result = result.conj_physical()
    return result.neg() if tensor.is_neg() else result
