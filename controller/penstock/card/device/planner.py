"""`Planner`: makes the plan for an operation and arguments that were not seen together before."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from penstock.card.device.conversions import Loan
from penstock.card.device.costs import Costs
from penstock.card.device.decision import PARTIAL, WHOLE, Cut, Decision, Question, all_whole
from penstock.card.device.gathering import gather_cost
from penstock.card.device.inference import infer
from penstock.card.device.messages import Slots, operation_message
from penstock.card.device.operand import Operand
from penstock.card.device.passes import Division
from penstock.card.device.plan import NewTensor, Plan
from penstock.card.device.rules import rules_for
from penstock.card.device.tensors import extent, shard_for
from penstock.card.layout import (
    Layout,
    LocalView,
    Split,
    local_views,
    partial_of,
    shard_at,
    split_at,
    whole_view,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.card.device.buffer import Buffer
    from penstock.card.device.decision import Use
    from penstock.card.device.inference import Inferred, Meta
    from penstock.card.device.signature import Signature
    from penstock.card.device.stream import Stream


LEAST_WORK = 1e6  # multiplications: a millisecond of a slow core, or what a message to it costs


# These may write an element several times, as each time is the same.
IDEMPOTENT = {"aten::fill_", "aten::zero_", "aten::masked_fill_"}


class ResizeError(Exception):
    """An argument must get another size before the operation can be planned."""

    def __init__(self, tensor: int, size: tuple[int, ...], stride: tuple[int, ...]) -> None:
        super().__init__(tensor)
        self.tensor, self.size, self.stride = tensor, size, stride


class Planner:
    """Makes plans for the cards of a stream.

    Attributes:
        speeds: What the cards are worth to each other.
        is_sharding: Whether large sums are kept in parts once they are added up.
        gathered: How often each operation was done whole on every card although an argument was
            split.
        costs: What it costs that they were.
    """

    def __init__(
        self, stream: Stream, speeds: tuple[float, ...], least_work: float = LEAST_WORK
    ) -> None:
        self._stream = stream
        self._least_work = least_work
        self.speeds = speeds
        self.is_sharding = False
        self.gathered: Counter[str] = Counter()
        self.costs = Costs()
        self._inferred: dict[tuple[Any, ...], Inferred] = {}

    def plan(
        self,
        signature: Signature,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        tensors: Sequence[torch.Tensor],
        buffers: Sequence[Buffer],
        key: tuple[Any, ...],
    ) -> Plan:
        """The plan for a call, for all calls with arguments like these, which have this key.

        Raises:
            DependsOnDataError: the shapes of the results depend on data.
            ResizeError: a tensor given as `out` must be resized first.
            Exception: what torch says of arguments that do not fit.
        """
        inferred = self._infer(signature, args, kwargs, key)
        changed = signature.changed_tensors(args, kwargs)
        if signature.is_pointwise and signature.name not in IDEMPOTENT:
            _check_overlap(tensors[i] for i in changed)
        operands = [
            Operand(i, tensor, buffer, is_changed=i in changed)
            for i, (tensor, buffer) in enumerate(zip(tensors, buffers, strict=True))
        ]
        for operand, meta in zip(operands, inferred.sizes, strict=True):
            if operand.is_changed and operand.size != meta.size:
                raise ResizeError(operand.index, meta.size, meta.stride)
        question = self._question(signature, args, kwargs, operands, inferred)
        return self._planned(signature, question, args, kwargs, len(inferred.results))

    def _infer(
        self,
        signature: Signature,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        key: tuple[Any, ...],
    ) -> Inferred:
        """What a call returns, which does not depend on layouts.

        To infer it is most of a plan's time, and arguments come in several layouts: whole and
        split, and otherwise split when cards get other speeds.
        """
        shapes = tuple(one for one in key if not isinstance(one, Layout))
        inferred = self._inferred.get(shapes)
        if inferred is None:
            inferred = self._inferred[shapes] = infer(signature.operation, args, kwargs)
        return inferred

    def _question(
        self,
        signature: Signature,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        operands: list[Operand],
        inferred: Inferred,
    ) -> Question:
        named = signature.named(args, kwargs, iter(operands))
        return Question(signature.name, signature.full_name, named, operands, inferred.results,
                        self.speeds, signature.is_random, self._least_work,
                        signature.target_count, self.is_sharding)  # fmt: skip

    def _planned(
        self,
        signature: Signature,
        question: Question,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        result_count: int,
    ) -> Plan:
        aliases = signature.result_aliases(args, kwargs, len(question.results))
        decision, layouts = self._decide(signature, question, aliases)
        is_split = any(isinstance(one.layout, Split) and not one.is_shard
                       for one in question.operands)  # fmt: skip
        if is_split and not decision.is_split:
            self.gathered[question.name] += 1
        results, outputs = _results(question, decision, aliases)
        messages = [
            operation_message(
                decision.name or signature.full_name, signature.positional, args, kwargs,
                Slots(card, question, decision, layouts, outputs),
            )
            for card in range(question.cards)
        ]  # fmt: skip
        before, loans, after = _changes(question.operands, layouts)
        number = self._stream.define(messages)
        gather = gather_cost(self.costs, signature, question, decision, layouts)
        build = signature.builder(result_count)
        divisions = [] if is_split else _divisions(question, decision, layouts)
        return Plan(number, results, before, loans, after, build, gather, divisions)

    def _decide(
        self, signature: Signature, question: Question, aliases: Sequence[int | None]
    ) -> tuple[Decision, list[Layout]]:
        """The decision that moves the fewest bytes, and the layouts that the arguments need for it.

        The decisions that a rule offers come before doing everything on every card.

        Raises:
            AssertionError: nothing can be carried out, which no tensor allows.
        """
        offered: list[Decision] = []
        if question.cards > 1 or question.is_random:
            offered.extend(rules_for(signature)(question))
        if not question.is_random:
            offered.append(all_whole(question))
        best: tuple[Decision, list[Layout]] | None = None
        least_bytes = math.inf
        for decision in offered:
            _use_targets_as_results(question, decision, aliases)
            layouts = _layouts(question, decision)
            if layouts is None or not _results_fit(question, decision):
                continue
            moved_bytes = _moved_bytes(question, decision)
            if moved_bytes < least_bytes:
                best, least_bytes = (decision, layouts), moved_bytes
        if best is None:
            raise AssertionError(f"{signature.full_name}: every tensor can be made whole")
        return best


def _changes(
    operands: Sequence[Operand], layouts: Sequence[Layout]
) -> tuple[list[tuple[int, Layout]], list[Loan], list[tuple[int, Layout]]]:
    """What changes layouts before a call, what is lent for it, and the layouts it leaves."""
    before, loans, after = [], [], []
    for one, wanted in zip(operands, layouts, strict=True):
        layout = wanted
        if one.is_shard and one.settled is not None and wanted is WHOLE:
            loans.append(Loan(one.index, one.is_changed))
            layout = one.settled
        if one.buffer.layout is not layout:
            before.append((one.index, layout))
        if one.is_changed:
            after.append((one.index, layout))
    return before, loans, after


def _divisions(question: Question, decision: Decision, layouts: Sequence[Layout]) -> list[Division]:
    """The arguments that every card has whole and of which it takes its rows."""
    return [
        Division(one.index, use.dim, use.rows)
        for one, use, layout in zip(question.operands, decision.uses, layouts, strict=True)
        if isinstance(use, Cut) and layout is WHOLE and one.settled is WHOLE
    ]


def _check_overlap(targets: Iterable[torch.Tensor]) -> None:
    """Refuses to write into tensors whose elements share memory. Raises `RuntimeError`."""
    if any(torch._debug_has_internal_overlap(one) == 1 for one in targets):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a "
            "single memory location. Please clone() the tensor before performing the operation."
        )


def _results(
    question: Question, decision: Decision, aliases: Sequence[int | None]
) -> tuple[list[NewTensor | int | None], list[tuple[Meta, Use] | None]]:
    """What a call returns, and what the cards make new for it."""
    results: list[NewTensor | int | None] = []
    outputs: list[tuple[Meta, Use] | None] = []
    for meta, use, alias in zip(question.results, decision.results, aliases, strict=True):
        if alias is not None or meta is None:
            results.append(alias)
            outputs.append(None)
            continue
        size_bytes = extent(meta.size, meta.stride) * meta.dtype.itemsize
        layout = _result_layout(question, decision, meta, use)
        results.append(NewTensor(meta.size, meta.stride, meta.dtype, layout, size_bytes))
        outputs.append((meta, use))
    return results, outputs


def _result_layout(question: Question, decision: Decision, meta: Meta, use: Use) -> Layout:
    if use is PARTIAL:
        return _sum_layout(question, meta.size, meta.stride, meta.dtype)
    if not isinstance(use, Cut):
        return use
    split = _split_of(meta, use)
    if split is None:
        raise AssertionError("the decision was checked for its results")
    return _kept(question, decision, split)


def _kept(question: Question, decision: Decision, split: Split) -> Split:
    """A split that stays if it is made of rows of such splits alone: parameters' own tensors."""
    used = [one for one, use in zip(question.operands, decision.uses, strict=True)
            if one.cut is not None and one.cut == use]  # fmt: skip
    return shard_at(split.bounds) if used and all(one.is_shard for one in used) else split


def _sum_layout(
    question: Question, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
) -> Layout:
    """The layout of partial sums in a new tensor; large ones are kept in parts afterwards."""
    shard = shard_for(size, stride, dtype, question.speeds) if question.is_sharding else None
    return PARTIAL if shard is None else partial_of(shard)


def _layouts(question: Question, decision: Decision) -> list[Layout] | None:
    """The layout that each argument needs for a decision; None if it cannot have it."""
    layouts: list[Layout] = []
    for operand, use in zip(question.operands, decision.uses, strict=True):
        layout = _layout(question, decision, operand, use)
        if layout is None:
            return None
        layouts.append(layout)
    seen: dict[int, Layout] = {}
    for operand, layout in zip(question.operands, layouts, strict=True):
        # Two arguments in one buffer: it cannot lie in two ways at once.
        if seen.setdefault(operand.buffer.number, layout) is not layout:
            return None
    return layouts


def _moved_bytes(question: Question, decision: Decision) -> float:
    """Bytes that the cards must exchange so that the arguments lie as a decision wants them."""
    moved_bytes = 0.0
    for operand, use in zip(question.operands, decision.uses, strict=True):
        size_bytes = operand.buffer.size_bytes
        if operand.layout is PARTIAL and use is not PARTIAL:
            moved_bytes += 2 * size_bytes
        elif isinstance(operand.layout, Split) and operand.cut != use:
            moved_bytes += size_bytes
    return moved_bytes


def _layout(question: Question, decision: Decision, operand: Operand, use: Use) -> Layout | None:
    if use is WHOLE:
        return WHOLE
    if use is PARTIAL:
        if operand.layout is None:
            return _sum_layout(question, operand.size, operand.stride, operand.dtype)
        return operand.buffer.layout if operand.layout is PARTIAL else None
    if not isinstance(use, Cut):
        raise TypeError(use)
    if operand.cut == use:
        return operand.settled
    if sum(use.rows) != operand.size[use.dim]:
        return None
    return _moved_split(question, decision, operand, use) if operand.is_changed else WHOLE


def _moved_split(
    question: Question, decision: Decision, operand: Operand, cut: Cut
) -> Split | None:
    """The layout of an argument that is changed and is to be cut otherwise; shards stay."""
    split = None if operand.is_shard else split_for(operand, cut)
    return None if split is None else _kept(question, decision, split)


def split_for(operand: Operand, cut: Cut) -> Split | None:
    """The split of a buffer by which one of its tensors is cut like this, if there is one."""
    item_bytes = operand.dtype.itemsize
    if operand.offset or operand.size[cut.dim] * operand.stride[cut.dim] * item_bytes != (
        operand.buffer.size_bytes
    ):
        return None
    return _checked_split(operand.size, operand.stride, item_bytes, cut)


def _split_of(meta: Meta, cut: Cut) -> Split | None:
    if cut.dim >= len(meta.size) or meta.size[cut.dim] != sum(cut.rows):
        return None
    return _checked_split(meta.size, meta.stride, meta.dtype.itemsize, cut)


def _checked_split(
    size: tuple[int, ...], stride: tuple[int, ...], item_bytes: int, cut: Cut
) -> Split | None:
    bounds = [0]
    for rows in cut.rows:
        bounds.append(bounds[-1] + rows * stride[cut.dim] * item_bytes)
    if any(low >= high for low, high in itertools.pairwise(bounds)):
        return None
    if bounds[-1] != extent(size, stride) * item_bytes:
        return None
    split = split_at(tuple(bounds))
    found = local_views(split, size, stride, 0, item_bytes)
    return split if found is not None and found[0] == cut else None


def _use_targets_as_results(
    question: Question, decision: Decision, aliases: Sequence[int | None]
) -> None:
    """A tensor given as `out` lies as the result does, whatever the rule says of it."""
    targets = question.operands[len(question.operands) - question.target_count :]
    uses = list(decision.uses)
    for use, alias in zip(decision.results, aliases, strict=True):
        if alias is not None and question.operands[alias] in targets:
            uses[alias] = use
    decision.uses = uses


def _results_fit(question: Question, decision: Decision) -> bool:
    return all(
        not isinstance(use, Cut) or meta is None or _split_of(meta, use) is not None
        for meta, use in zip(question.results, decision.results, strict=True)
    )


def local_view(operand: Operand, use: Use, layout: Layout, card: int) -> LocalView:
    """What a card passes to the operation for an argument."""
    whole = LocalView(operand.size, operand.stride, operand.offset)
    if not isinstance(use, Cut):
        return whole
    if not isinstance(layout, Split):
        return whole_view(use, card, *whole)
    found = local_views(layout, *whole, operand.dtype.itemsize)
    if found is None:
        raise AssertionError("the layout was chosen for this cut")
    return found[1][card]
