"""Rules of operations that work along some dimensions: they can be split along the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.card.device.rules.offers import (
    PARTIAL,
    WHOLE,
    Cut,
    Decision,
    Question,
    decide,
    normal_dim,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.card.device.operand import Operand

# Results have the shape of the first argument, or differ from it along the dimension alone.
ALONG_DIM = {
    "_softmax": ("self",), "_log_softmax": ("self",), "_safe_softmax": ("self",),
    "_softmax_backward_data": ("grad_output", "output"),
    "_log_softmax_backward_data": ("grad_output", "output"),
    "cumsum": ("self",), "cumprod": ("self",), "logcumsumexp": ("self",), "sort": ("self",),
    "topk": ("self",), "glu": ("self",), "glu_backward": ("grad_output", "self"),
    "flip": ("self",), "roll": ("self",), "gather": ("self", "index"),
    "index_select": ("self",), "scatter": ("self", "index", "src"),
    "scatter_add": ("self", "index", "src"), "cummax": ("self",), "cummin": ("self",),
    "diff": ("self",), }  # fmt: skip
DIM_NAMES = ("dim", "dims")


def along_dim(question: Question) -> Iterator[Decision]:
    """Softmax, sort, cumsum and the like: split along any dimension but theirs."""
    names = ALONG_DIM[question.name.removeprefix("aten::")]
    own = [question.named[name] for name in names if question.named.get(name) is not None]
    own = [one for one in own if hasattr(one, "cut")]
    for one in own:
        if one.cut is None or any(other.rank != one.rank for other in own):
            continue
        if one.cut.dim in _dims(question.named, one.rank):
            continue
        if any(other.size[one.cut.dim] != sum(one.cut.rows) for other in own):
            continue
        yield decide(question, {other.index: one.cut for other in own}, [one.cut])


def _dims(named: dict[str, Any], rank: int) -> set[int]:
    value = next((named[name] for name in DIM_NAMES if named.get(name) is not None), None)
    if value is None or value == []:
        return set(range(rank))
    values = value if isinstance(value, (list, tuple)) else [value]
    return {normal_dim(one, rank) for one in values}


REDUCTIONS = {
    "sum", "mean", "amax", "amin", "prod", "any", "all", "var", "std", "logsumexp", "norm",
    "linalg_vector_norm", "argmax", "argmin", "min", "max", "nansum", "count_nonzero", "median",
    "var_mean", "std_mean", "mode", "kthvalue", "nanmedian", "aminmax",
}  # fmt: skip


def reduction(question: Question) -> Iterator[Decision]:
    """Sums, maxima and the like: split along what remains; sums also along what they sum over."""
    own = question.operands[0]
    short = question.name.removeprefix("aten::")
    if len(question.operands) > 1:
        return
    dims = _dims(question.named, own.rank)
    if own.cut is not None and own.cut.dim not in dims:
        keeps = question.named.get("keepdim", False)
        dim = own.cut.dim - (0 if keeps else sum(one < own.cut.dim for one in dims))
        yield decide(question, {0: own.cut}, [Cut(dim, own.cut.rows)])
    elif own.cut is not None and short == "sum":
        yield decide(question, {0: own.cut}, [PARTIAL])
    elif own.cut is not None and short == "linalg_vector_norm" and len(dims) == own.rank:
        yield from _norm(question, [own], "penstock::norm")
    elif own.cut is not None and short == "mean":
        yield _mean(question, own.cut, dims)
    if own.layout is PARTIAL and short in {"sum", "mean"} and _is_real(question):
        yield decide(question, {0: PARTIAL}, [PARTIAL])


def _mean(question: Question, cut: Cut, dims: set[int]) -> Decision:
    own, cards = question.operands[0], range(question.cards)
    count = 1
    for dim in dims:
        count *= own.size[dim]
    replaced: dict[str, Any] = {"count": [count for _ in cards]}
    return decide(question, {0: cut}, [PARTIAL], replaced, "penstock::mean")


def norms(question: Question) -> Iterator[Decision]:
    """_foreach_norm: the norms of the cards' rows have the norm of the whole."""
    yield from _norm(question, question.operands, "penstock::foreach_norm")


def _norm(question: Question, own: list[Operand], name: str) -> Iterator[Decision]:
    is_alike = len({one.dtype for one in own}) == 1 and _is_real(question)
    if not is_alike or question.named["dtype"] is not None:
        return
    uses = {one.index: one.cut for one in own if one.cut is not None}
    is_split = [one.cut is not None for one in own]
    replaced = {"is_split": [is_split for _ in range(question.cards)]}
    if uses:
        yield decide(question, dict(uses), [WHOLE], replaced, name)


def _is_real(question: Question) -> bool:
    return all(one.dtype.is_floating_point for one in question.operands)


def layer_norm(question: Question) -> Iterator[Decision]:
    """native_layer_norm and its backward: split along the dimensions that are not normalized."""
    named = question.named
    names = ("grad_out", "input", "mean", "rstd") if "grad_out" in named else ("input",)
    own = [named[name] for name in names]
    normalized = len(named["normalized_shape"])
    is_backward = len(own) > 1
    for one in own:
        if one.cut is None or one.cut.dim >= named["input"].rank - normalized:
            continue
        uses = {other.index: one.cut for other in own}
        yield decide(question, dict(uses), [one.cut, *([PARTIAL, PARTIAL] if is_backward else [])])


def embedding(question: Question) -> Iterator[Decision]:
    """Rows of a table: split along the indices."""
    from penstock.card.device.rules.offers import fresh_rows

    indices = question.named["indices"]
    cut = indices.cut
    work = indices.size and question.results[0] is not None and _elements(question)
    if cut is None and indices.rank > 1 and work and work >= question.least_work / 64:
        rows = fresh_rows(indices, 0, question.speeds)
        cut = Cut(0, rows) if rows is not None else None
    if cut is not None:
        yield decide(question, {indices.index: cut}, [cut])


def _elements(question: Question) -> int:
    count = 1
    meta = question.results[0]
    for length in meta.size if meta is not None else ():
        count *= length
    return count


def embedding_backward(question: Question) -> Iterator[Decision]:
    """Gradients of a table: each card sums over its indices."""
    named = question.named
    gradient, indices = named["grad_output"], named["indices"]
    if named["scale_grad_by_freq"]:
        return
    for one in (gradient, indices):
        if one.cut is not None and one.cut.dim < indices.rank:
            yield decide(question, {gradient.index: one.cut, indices.index: one.cut}, [PARTIAL])


def joined(question: Question) -> Iterator[Decision]:
    """cat: split along any dimension but the one along which the tensors are joined."""
    dim = normal_dim(
        question.named.get("dim", 0), max((one.rank for one in question.operands), default=1)
    )
    for one in question.operands:
        if one.cut is None or one.cut.dim == dim:
            continue
        if all(other.rank == one.rank for other in question.operands):
            yield decide(question, {other.index: one.cut for other in question.operands}, [one.cut])


def stacked(question: Question) -> Iterator[Decision]:
    """stack: split along any dimension of the tensors; the new one lies behind it."""
    for one in question.operands:
        if one.cut is None:
            continue
        dim = normal_dim(question.named.get("dim", 0), one.rank + 1)
        cut = Cut(one.cut.dim + (one.cut.dim >= dim), one.cut.rows)
        yield decide(question, {other.index: one.cut for other in question.operands}, [cut])


def padded(question: Question) -> Iterator[Decision]:
    """constant_pad_nd: split along a dimension that gets no padding."""
    own = question.operands[0]
    first = own.rank - len(question.named["pad"]) // 2
    if own.cut is not None and own.cut.dim < first:
        yield decide(question, {0: own.cut}, [own.cut])


def backward_of_view(question: Question) -> Iterator[Decision]:
    """slice_backward, select_backward: zeros with the gradient in them."""
    own, named = question.operands[0], question.named
    sizes = list(named["input_sizes"])
    dim = normal_dim(named["dim"], len(sizes))
    if own.cut is None:
        return
    at = own.cut.dim
    if question.name == "aten::select_backward":
        at += at >= dim
    if at != dim:
        replaced = [[*sizes[:at], rows, *sizes[at + 1 :]] for rows in own.cut.rows]
        yield decide(question, {0: own.cut}, [Cut(at, own.cut.rows)], {"input_sizes": replaced})


def each_by_itself(question: Question) -> Iterator[Decision]:
    """Operations on lists of tensors in which those of one place belong together."""
    lists = [value for value in question.named.values() if isinstance(value, list)]
    lists = [one for one in lists if one and hasattr(one[0], "cut")]
    uses: dict[int, Any] = {}
    results: list[Any] = []
    for group in zip(*lists, strict=False):
        cut = next((one.cut for one in group if one.cut is not None and not _is_scalar(one)), None)
        for one in group:
            if cut is not None and not _is_scalar(one):
                uses[one.index] = cut
        results.append(cut if cut is not None else WHOLE)
    made = [one for one in question.results if one is not None]
    if uses and len(made) in {0, len(results)}:
        yield decide(question, uses, results or [WHOLE])


def _is_scalar(operand: Any) -> bool:
    return operand.rank == 0
