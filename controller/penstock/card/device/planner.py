"""`Planner`: makes the plan for an operation and arguments that were not seen together before."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from penstock.card.device.decision import PARTIAL, WHOLE, Cut, Decision, Question, all_whole
from penstock.card.device.inference import infer
from penstock.card.device.messages import Slots, operation_message
from penstock.card.device.operand import Operand
from penstock.card.device.plan import NewTensor, Plan
from penstock.card.device.rules import rule_for
from penstock.card.device.tensors import extent
from penstock.card.layout import LocalView, Split, local_views, whole_view
from penstock.card.layout.placement import split_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from penstock.card.device.buffer import Buffer
    from penstock.card.device.decision import Use
    from penstock.card.device.inference import Inferred, Meta
    from penstock.card.device.signature import Signature
    from penstock.card.device.stream import Stream
    from penstock.card.layout import Layout


class ResizeError(Exception):
    """An argument must get another size before the operation can be planned."""

    def __init__(self, tensor: int, size: tuple[int, ...], stride: tuple[int, ...]) -> None:
        super().__init__(tensor)
        self.tensor, self.size, self.stride = tensor, size, stride


class Planner:
    """Makes plans for the cards of a stream.

    Attributes:
        gathered: How often each operation was done whole on every card although an argument was
            split.
    """

    def __init__(self, stream: Stream, speeds: tuple[float, ...]) -> None:
        self._stream = stream
        self._speeds = speeds
        self.gathered: Counter[str] = Counter()

    def plan(
        self,
        signature: Signature,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        tensors: Sequence[torch.Tensor],
        buffers: Sequence[Buffer],
    ) -> Plan:
        """The plan for a call, for all calls with arguments like these.

        Raises:
            DependsOnDataError: the shapes of the results depend on data.
            ResizeError: a tensor given as `out` must be resized first.
            Exception: what torch says of arguments that do not fit.
        """
        inferred = infer(signature.operation, args, kwargs)
        changed = signature.changed_tensors(args, kwargs)
        operands = [
            Operand(i, tensor, buffer, is_changed=i in changed)
            for i, (tensor, buffer) in enumerate(zip(tensors, buffers, strict=True))
        ]
        for operand, meta in zip(operands, inferred.sizes, strict=True):
            if operand.is_changed and operand.size != meta.size:
                raise ResizeError(operand.index, meta.size, meta.stride)
        question = self._question(signature, args, kwargs, operands, inferred)
        return self._planned(signature, question, args, kwargs, len(inferred.results))

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
                        self._speeds, signature.is_random)  # fmt: skip

    def _planned(
        self,
        signature: Signature,
        question: Question,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        result_count: int,
    ) -> Plan:
        decision, layouts = self._decide(signature, question)
        is_split = any(isinstance(one.layout, Split) for one in question.operands)
        if is_split and not any(isinstance(use, Cut) for use in decision.uses):
            self.gathered[question.name] += 1
        results, outputs = self._results(signature, question, decision, args, kwargs)
        messages = [
            operation_message(
                decision.name or signature.full_name, signature.positional, args, kwargs,
                Slots(card, question, decision, layouts, outputs),
            )
            for card in range(question.cards)
        ]  # fmt: skip
        before = [(one.index, layout) for one, layout in zip(question.operands, layouts, strict=True)
                  if one.layout is not layout]  # fmt: skip
        after = [
            (one.index, _final(one, use, layout))
            for one, use, layout in zip(question.operands, decision.uses, layouts, strict=True)
            if one.is_changed
        ]
        number = self._stream.define(messages)
        return Plan(number, results, before, after, signature.builder(result_count))

    def _decide(self, signature: Signature, question: Question) -> tuple[Decision, list[Layout]]:
        """A decision that can be carried out, and the layouts that the arguments need for it."""
        if question.cards > 1 or question.is_random:
            rule = rule_for(signature)
            decision = rule(question) if rule is not None else None
            if decision is not None:
                layouts = _layouts(question, decision)
                if layouts is not None and _results_fit(question, decision):
                    return decision, layouts
        whole = all_whole(question)
        layouts = _layouts(question, whole)
        if layouts is None:
            raise AssertionError("every tensor can be made whole")
        return whole, layouts

    def _results(
        self,
        signature: Signature,
        question: Question,
        decision: Decision,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> tuple[list[NewTensor | int | None], list[tuple[Meta, Use] | None]]:
        aliases = signature.result_aliases(args, kwargs, len(question.results))
        results: list[NewTensor | int | None] = []
        outputs: list[tuple[Meta, Use] | None] = []
        for meta, use, alias in zip(question.results, decision.results, aliases, strict=True):
            if alias is not None or meta is None:
                results.append(alias)
                outputs.append(None)
                continue
            size_bytes = extent(meta.size, meta.stride) * meta.dtype.itemsize
            layout = _split_of(meta, use) if isinstance(use, Cut) else use
            results.append(NewTensor(meta.size, meta.stride, meta.dtype, layout, size_bytes))  # type: ignore[arg-type]
            outputs.append((meta, use))
        return results, outputs


def _layouts(question: Question, decision: Decision) -> list[Layout] | None:
    """The layout that each argument needs for a decision; None if it cannot have it."""
    layouts: list[Layout] = []
    for operand, use in zip(question.operands, decision.uses, strict=True):
        layout = _layout(operand, use)
        if layout is None:
            return None
        layouts.append(layout)
    seen: dict[int, Layout] = {}
    for operand, layout in zip(question.operands, layouts, strict=True):
        # Two arguments in one buffer: it cannot lie in two ways at once.
        if seen.setdefault(operand.buffer.number, layout) is not layout:
            return None
    return layouts


def _layout(operand: Operand, use: Use) -> Layout | None:
    if use is WHOLE:
        return WHOLE
    if use is PARTIAL:
        return PARTIAL if operand.layout in {PARTIAL, None} else None
    if not isinstance(use, Cut):
        raise TypeError(use)
    if operand.cut == use:
        return operand.layout
    if sum(use.rows) != operand.size[use.dim]:
        return None
    if not operand.is_changed:
        return WHOLE  # each card takes its rows of it
    return split_for(operand, use)


def split_for(operand: Operand, cut: Cut) -> Split | None:
    """The split of a buffer by which one of its tensors is cut like this, if there is one."""
    item_bytes = operand.dtype.itemsize
    if operand.offset or operand.size[cut.dim] * operand.stride[cut.dim] * item_bytes != (
        operand.buffer.size_bytes
    ):
        return None
    return _checked_split(operand.size, operand.stride, item_bytes, cut)


def _split_of(meta: Meta, cut: Cut) -> Split | None:
    return _checked_split(meta.size, meta.stride, meta.dtype.itemsize, cut)


def _checked_split(
    size: tuple[int, ...], stride: tuple[int, ...], item_bytes: int, cut: Cut
) -> Split | None:
    bounds = [0]
    for rows in cut.rows:
        bounds.append(bounds[-1] + rows * stride[cut.dim] * item_bytes)
    if any(low >= high for low, high in zip(bounds, bounds[1:], strict=False)):
        return None
    if bounds[-1] != extent(size, stride) * item_bytes:
        return None
    split = split_at(tuple(bounds))
    found = local_views(split, size, stride, 0, item_bytes)
    return split if found is not None and found[0] == cut else None


def _results_fit(question: Question, decision: Decision) -> bool:
    return all(
        not isinstance(use, Cut) or meta is None or _split_of(meta, use) is not None
        for meta, use in zip(question.results, decision.results, strict=True)
    )


def _final(operand: Operand, use: Use, layout: Layout) -> Layout:
    """How a changed argument lies afterwards."""
    return use if use is PARTIAL else layout  # type: ignore[return-value]


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

