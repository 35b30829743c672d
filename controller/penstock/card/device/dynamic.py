"""Operations whose results have shapes that depend on data: the program waits for the cards."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from penstock.card.device.buffer import dead, reserve
from penstock.card.device.conversions import Loan
from penstock.card.device.decision import Question, all_whole
from penstock.card.device.messages import Slots, operation_message
from penstock.card.device.operand import Operand
from penstock.card.device.tensors import new_tensor
from penstock.card.frames import pack_calls
from penstock.card.layout import WHOLE, Shard, Split
from penstock_api.v1 import card_ops_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.card.device.kernel import Scan
    from penstock.card.device.session import Session
    from penstock.card.device.signature import Signature

MOST_RESULTS = 64  # tensors that such an operation returns; one that returns more fails


def compute(
    session: Session,
    signature: Signature,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    scan: Scan,
    key: tuple[Any, ...],
) -> object:
    """Runs an operation whole on every card and returns what it returned.

    `key`: what is equal for calls whose arguments have the same shapes. The cards get the
    operation's definition once for each key.

    Raises:
        RuntimeError: the operation failed.
        PenstockCardWarning: the program makes errors of such warnings.
    """
    began_ns = time.monotonic_ns()
    gathered_bytes = sum(
        one.size_bytes for one in set(scan.buffers) if isinstance(one.layout, Split)
    )
    changed = signature.changed_tensors(args, kwargs)
    loans = [Loan(i, i in changed) for i in range(len(scan.buffers))
             if _prepared_loan(session, scan, i)]  # fmt: skip
    number = session.dynamic.find(key)
    if number is None:
        number = _defined(session, signature, args, kwargs, scan)
        session.dynamic.add(key, number)
    spare = [reserve() for _ in range(MOST_RESULTS)]
    lent = session.conversions.lend(loans, scan.buffers)
    numbers = [number, *(one.number for one in lent), *scan.integers, *spare]
    try:
        answers = session.stream.compute(pack_calls(numbers, scan.reals))
    except Exception:
        dead.extend(spare)  # it may have failed on one card alone
        raise
    finally:
        session.conversions.take_back(loans, scan.buffers, lent)
    items = pb.Results.FromString(bytes(answers[0])).items
    new = iter(spare)
    made = [_result(item, new) for item in items]
    aliases = signature.result_aliases(args, kwargs, len(made))
    made = [one if alias is None else scan.tensors[alias]
            for one, alias in zip(made, aliases, strict=True)]  # fmt: skip
    build = signature.builder(len(made))
    session.planner.costs.computed(signature.name, gathered_bytes, began_ns)
    return made[0] if build is None else build(made)


def _prepared_loan(session: Session, scan: Scan, index: int) -> bool:
    """Makes an argument whole, unless it is kept in parts; whether it is to be lent."""
    buffer = scan.buffers[index]
    settled = WHOLE if buffer.layout is None else buffer.layout.settled
    is_shard = isinstance(settled, Shard)
    layout = settled if is_shard else WHOLE
    if buffer.layout is not layout:
        session.change_layout(buffer, layout, scan.tensors[index].dtype)
    return is_shard


def _defined(
    session: Session, signature: Signature, args: Sequence[Any], kwargs: dict[str, Any], scan: Scan
) -> int:
    operands = [
        Operand(i, tensor, buffer, is_changed=False)
        for i, (tensor, buffer) in enumerate(zip(scan.tensors, scan.buffers, strict=True))
    ]
    question = Question(signature.name, signature.full_name, {}, operands, [], session.speeds)
    slots = Slots(0, question, all_whole(question), [WHOLE] * len(operands), [])
    message = operation_message(signature.full_name, signature.positional, args, kwargs, slots)
    return session.stream.define([message for _ in session.speeds])


def _result(item: pb.Result, numbers: Any) -> Any:
    kind = item.WhichOneof("kind")
    if kind != "tensor":
        return None if kind is None else getattr(item, kind)
    view = item.tensor
    return new_tensor(tuple(view.size), tuple(view.stride), getattr(torch, view.dtype), WHOLE,
                      item.buffer_bytes, number=next(numbers))  # fmt: skip
