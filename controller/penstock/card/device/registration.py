"""Registration: hands torch the kernels of the device for all of its operations."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from penstock.card.device.attention import SCHEMAS, attention_kernels
from penstock.card.device.decompositions import decompositions
from penstock.card.device.gradients import gradient_kernels
from penstock.card.device.kernel import Kernel
from penstock.card.device.random import random_kernels
from penstock.card.device.signature import Signature
from penstock.card.device.tracing import CALL_CODE
from penstock.card.device.transfers import index_kernels, transfer_kernels
from penstock.card.device.views import UNMARKED, VIEW_CODE, view_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.card.device.session import Session

# torch's own kernels for these are right for the device: they make others of it, or none.
TORCHS_OWN = {
    "aten::resize_as_", "aten::is_pinned",
    "aten::_pin_memory", "aten::set_", "aten::_has_same_storage_numel", "aten::is_set_to",
    "aten::_has_compatible_shallow_copy_type", "aten::empty_like", "aten::new_empty",
    "aten::new_empty_strided", "aten::_empty_affine_quantized",
    "aten::_sparse_coo_tensor_with_dims_and_tensors", "aten::clone", "aten::new_zeros",
    "aten::new_ones", "aten::new_full", "aten::_pack_padded_sequence",
}  # fmt: skip
METADATA = {"aten::set_", "aten::is_set_to", "aten::_has_same_storage_numel"}
_own = torch.library.Library("penstock", "IMPL")
_library = torch.library.Library("aten", "IMPL")


# Kinds of tensors that the device does not have, and what would make them of its tensors.
_NOT_HERE = {
    "SparsePrivateUse1": "sparse", "SparseCsrPrivateUse1": "sparse",
    "QuantizedPrivateUse1": "quantized", "NestedTensorPrivateUse1": "nested",
}  # fmt: skip
_MAKE_SPARSE = (
    "_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr",
    "_to_sparse_bsc", "_sparse_compressed_tensor_unsafe", "_sparse_csr_tensor_unsafe",
    "_sparse_csc_tensor_unsafe", "_sparse_bsr_tensor_unsafe", "_sparse_bsc_tensor_unsafe",
)  # fmt: skip
_refusals = [torch.library.Library("_", "IMPL", key) for key in _NOT_HERE]


def register(session: Callable[[], Session]) -> int:
    """Registers a kernel for each operation that torch does not make of others; how many."""
    own = {**transfer_kernels(session), **index_kernels(session), **random_kernels(),
           **attention_kernels(), **gradient_kernels(session),
           **dict.fromkeys(_MAKE_SPARSE, _refusing("sparse"))}  # fmt: skip
    made_of_others = decompositions()
    count = 0
    _hide_from_compiler([*own.values(), *made_of_others.values()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in torch._C._dispatch_get_all_op_names():
            short = name.removeprefix("aten::")
            if (
                not name.startswith("aten::")
                or (_is_composite(name) and short not in _MAKE_SPARSE)
                or short in made_of_others
            ):
                continue
            kernel = own.get(short) or _kernel(name, session)
            if kernel is not None:
                _library.impl(short, kernel, "PrivateUse1")
                count += 1
        for schema in SCHEMAS:
            name = schema.partition("(")[0]
            operation = getattr(torch.ops.penstock, name).default
            _own.impl(name, Kernel(Signature(operation), session), "PrivateUse1")
        for name, kernel in made_of_others.items():
            _library.impl(name, kernel, "AutogradPrivateUse1")
            _library.impl(name, kernel, "PrivateUse1")  # in inference mode
        for library, kind in zip(_refusals, _NOT_HERE.values(), strict=True):
            library.fallback(_refusing(kind))
    return count


def _hide_from_compiler(kernels: Iterable[Callable[..., Any]]) -> None:
    """Keeps torch.compile, which looks at all Python code that runs, out of the kernels."""
    compiler = torch._C._dynamo.eval_frame
    skip = compiler._FrameExecStrategy(compiler._FrameAction.SKIP, compiler._FrameAction.SKIP)
    codes = {one.__code__ for one in kernels if hasattr(one, "__code__")}
    for code in (*codes, Kernel.__call__.__code__, CALL_CODE, VIEW_CODE):
        compiler.set_code_exec_strategy(code, skip)


def _refusing(kind: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(
            f"device penstock has no {kind} tensors: keep them on the CPU, or use dense ones"
        )

    return refuse


def _is_composite(name: str) -> bool:
    return _has(name, "CompositeImplicitAutograd")


def _has(name: str, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


def _kernel(name: str, session: Callable[[], Session]) -> Callable[..., Any] | None:
    base, _, overload = name.partition(".")
    if base in TORCHS_OWN and base not in METADATA:
        return None
    try:
        packet = getattr(torch.ops.aten, base.removeprefix("aten::"))
        operation = getattr(packet, overload or "default")
    except AttributeError:
        return None  # only for TorchScript
    has_torchs = _has(name, "CompositeExplicitAutograd")
    if has_torchs and not any("Tensor" in str(one.type) for one in operation._schema.returns):
        return None  # torch answers from sizes alone, or of other operations
    signature = Signature(operation)
    is_drawn = torch.Tag.nondeterministic_seeded in operation.tags
    if is_drawn and has_torchs:
        return None  # torch makes it of an empty tensor and an operation that fills it
    is_view = signature.is_view or torch.Tag.inplace_view in operation.tags
    if base in METADATA or is_view or base in UNMARKED:
        # Where torch has a kernel for all devices, its results have no Python object yet, which
        # torch.nn.Parameter requires of what `detach` returns.
        return None if has_torchs else view_kernel(operation)
    return Kernel(signature, session)
