"""Inference: sizes, strides and types of what an operation returns, without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from penstock.card.device.scan import replaced

if TYPE_CHECKING:
    from collections.abc import Sequence

_DYNAMIC_TAGS = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
# The device decides the shapes of results that only its own backward reads.
_BY_DEVICE = {"aten::_embedding_bag", "aten::_embedding_bag_forward_only"}


# In evaluation these save no statistics; torch's inference says that they do.
_EVALUATED = {"aten::native_batch_norm", "aten::_native_batch_norm_legit"}


def _training(
    operation: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]
) -> bool:
    names = [one.name for one in operation._schema.arguments]
    return bool({**dict(zip(names, args, strict=False)), **kwargs}["training"])


def _depends_on_data(operation: torch._ops.OpOverload) -> bool:
    if operation._schema.name in _BY_DEVICE:
        return True
    # Indexing has the tag for masks; torch makes indices of those before it comes to a device.
    return operation is not torch.ops.aten.index.Tensor and not _DYNAMIC_TAGS.isdisjoint(
        operation.tags
    )


class Meta(NamedTuple):
    """A tensor without its content."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]


class Inferred(NamedTuple):
    """What an operation returns.

    Attributes:
        results: For each tensor of the flattened result its type and shape, or None.
        sizes: The sizes of the operation's tensor arguments afterwards; `out=` may change them.
    """

    results: list[Meta | None]
    sizes: list[Meta]


class DependsOnDataError(Exception):
    """The shapes of the results depend on the arguments' content, or nobody knows them."""


def infer(
    operation: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]
) -> Inferred:
    """What an operation would return, found out on torch's device meta.

    Raises:
        DependsOnDataError: only running it tells.
        Exception: whatever torch says of arguments that do not fit.
    """
    if _depends_on_data(operation):
        raise DependsOnDataError
    arguments: list[torch.Tensor] = []

    def to_meta(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.device.type != "penstock":
                return value  # without dimensions; its value decides nothing, its type does
            arguments.append(_meta_of(value))
            return arguments[-1]
        return torch.device("meta") if isinstance(value, torch.device) else value

    meta_args, meta_kwargs = replaced(list(args), to_meta), replaced(dict(kwargs), to_meta)
    meta_kwargs.pop("generator", None)
    if "device" in _argument_names(operation):
        meta_kwargs["device"] = torch.device("meta")
    try:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            result = operation(*meta_args, **meta_kwargs)
    except NotImplementedError as error:
        if operation._schema.returns:
            raise DependsOnDataError from error
        result = ()  # it only changes its arguments, whose sizes stay
    flat = result if isinstance(result, (tuple, list)) else (result,)
    flat = [one for each in flat for one in (each if isinstance(each, list) else (each,))]
    if operation._schema.name in _EVALUATED and not _training(operation, args, kwargs):
        flat = [flat[0], *(torch.empty(0, dtype=one.dtype, device="meta") for one in flat[1:])]
    return Inferred(
        [_described(one) if isinstance(one, torch.Tensor) else None for one in flat],
        [_described(one) for one in arguments],
    )  # fmt: skip


def _argument_names(operation: torch._ops.OpOverload) -> set[str]:
    return {one.name for one in operation._schema.arguments}


def _meta_of(tensor: torch.Tensor) -> torch.Tensor:
    meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    if tensor.is_conj():
        meta = torch._conj(meta)
    return torch._neg_view(meta) if tensor.is_neg() else meta


def _described(tensor: torch.Tensor) -> Meta:
    return Meta(tensor.dtype, tuple(tensor.shape), tensor.stride())
