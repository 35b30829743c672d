"""Transfers: tensors from the program's memory to the cards, back, and from one type to another."""

from __future__ import annotations

import time
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
_set = aten.set_.source_Storage_storage_offset


def transfer_kernels(session: Callable[[], Session]) -> dict[str, Callable[..., Any]]:
    """The kernels that make tensors and move content, by name without "aten::"."""
    copies = Copies(session)
    return {
        "copy_": copies.copy_,
        "_to_copy": _to_copy,
        "record_stream": lambda _, __: None,  # the cards free memory in the order of the calls
        "_local_scalar_dense": lambda tensor: to_cpu(session(), tensor, "item()").item(),
        "empty.memory_format": _empty,
        "empty_strided": _empty_strided,
        "resize_": _resize,
        "_efficientzerotensor": _zeros,
    }


class Copies:
    """`to.copy_(source)`, at least one of which is on the device."""

    def __init__(self, session: Callable[[], Session]) -> None:
        self._session = session
        self._on_cards = Kernel(Signature(aten.copy_.default), session)

    def copy_(
        self, to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False
    ) -> torch.Tensor:
        """Copies; takes the content of a source on the CPU before it returns."""
        del non_blocking
        if to.numel() == 0 and source.numel() == 0:
            return to
        if to.device.type != "penstock":
            return to.copy_(to_cpu(self._session(), source))
        if source.device.type == "penstock":
            return self._on_cards(to, source)
        self._upload(source.cpu(), to)
        return to

    def _upload(self, source: torch.Tensor, to: torch.Tensor) -> None:
        source = source.to(to.dtype).expand(to.shape).resolve_conj().resolve_neg()
        if _is_all(to):
            staged = torch.empty_strided(to.shape, to.stride(), dtype=to.dtype)
            self._session().upload(staged.copy_(source), to)
            return
        size = tuple(to.shape)
        beside = new_tensor(size, contiguous_stride(size), to.dtype, None)
        self._session().upload(source.contiguous(), beside)
        self._on_cards(to, beside)


def _to_copy(own: torch.Tensor, **options: Any) -> torch.Tensor:
    """`own.to(…)`; torch's own asks for pinned memory where it need not wait for the copy."""
    for name in ("pin_memory", "non_blocking"):
        options.pop(name, None)
    options["memory_format"] = options.get("memory_format") or torch.preserve_format
    return torch.empty_like(own, **options).copy_(own)


def _is_all(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all of its buffer, element by element."""
    if tensor.is_conj() or tensor.is_neg() or tensor.storage_offset() or not is_dense(tensor):
        return False
    return tensor.numel() * tensor.element_size() == buffer_of(tensor).size_bytes


def _empty_strided(
    size: list[int], stride: list[int], dtype: torch.dtype | None = None, **options: Any
) -> torch.Tensor:
    check_index(options.get("device"))
    dtype = dtype or torch.get_default_dtype()
    return new_tensor(tuple(size), tuple(stride), dtype, None)


def _empty(size: list[int], dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """A tensor without content. Raises `RuntimeError` for what no card has."""
    check_index(options.get("device"))
    layout = options.get("layout")
    if layout not in {None, torch.strided}:
        raise NotImplementedError(
            f"device penstock has no tensors of layout {layout}: keep them on the CPU, or use "
            "dense ones"
        )
    if options.get("pin_memory"):
        raise RuntimeError("only tensors on the CPU can be pinned")
    wanted = torch.empty(size, device="meta", memory_format=options.get("memory_format"))
    return new_tensor(tuple(size), wanted.stride(), dtype or torch.get_default_dtype(), None)


def _zeros(size: list[int], **options: Any) -> torch.Tensor:
    options.pop("device", None)
    return torch.zeros(size, device="penstock", **options)


def _resize(
    tensor: torch.Tensor, size: list[int], memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    wanted = torch.empty(size, device="meta", memory_format=memory_format)
    needed_bytes = extent(tuple(size), wanted.stride()) * tensor.element_size()
    if needed_bytes <= buffer_of(tensor).size_bytes:
        storage = tensor.untyped_storage()
        _set(tensor, storage, 0, tuple(size), wanted.stride())
        return tensor
    former = tensor.detach().reshape(-1) if tensor.numel() else None
    resize(tensor, tuple(size), wanted.stride())
    if former is not None:
        tensor.view(-1)[: former.numel()].copy_(former)
    return tensor


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
    has_overlap = torch._debug_has_internal_overlap(tensor) == 1
    return tensor.numel() == extent(tuple(tensor.shape), tensor.stride()) and not has_overlap


def to_cpu(session: Session, tensor: torch.Tensor, call: str = "cpu()") -> torch.Tensor:
    """A copy on the CPU of a tensor of the device, with the same strides.

    `call`: what the program calls, in words.

    Raises:
        CardError: a card is lost.
        PenstockCardWarning: the program makes errors of such warnings.
    """
    size, stride, dtype = tuple(tensor.shape), tensor.stride(), tensor.dtype
    if tensor.numel() == 0:
        return torch.empty_strided(size, stride, dtype=dtype)
    first = tensor.storage_offset() * dtype.itemsize
    size_bytes, began_ns = extent(size, stride) * dtype.itemsize, time.monotonic_ns()
    content = session.download(buffer_of(tensor), first, first + size_bytes, dtype)
    session.planner.costs.downloaded(call, size_bytes, began_ns)
    result = torch.frombuffer(content, dtype=torch.uint8).view(dtype).as_strided(size, stride)
    if tensor.is_conj():
        result = result.conj_physical()
    return result.neg() if tensor.is_neg() else result
