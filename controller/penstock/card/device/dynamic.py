"""Operations whose results have shapes that depend on data: the program waits for the cards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from penstock.card.device.buffer import dead, reserve
from penstock.card.device.decision import Question, all_whole
from penstock.card.device.messages import Slots, operation_message
from penstock.card.device.operand import Operand
from penstock.card.device.tensors import new_tensor
from penstock.card.frames import Kind, pack_calls
from penstock.card.layout import WHOLE
from penstock_api.v1 import card_ops_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.card.device.kernel import Scan
    from penstock.card.device.session import Session
    from penstock.card.device.signature import Signature

MOST_RESULTS = 64  # tensors that such an operation returns; one that returns more fails


def compute(
    session: Session, signature: Signature, args: Sequence[Any], kwargs: dict[str, Any], scan: Scan
) -> object:
    """Runs an operation whole on every card and returns what it returned. Raises `RuntimeError`."""
    for buffer, tensor in zip(scan.buffers, scan.tensors, strict=True):
        if buffer.layout is not WHOLE:
            session.change_layout(buffer, WHOLE, tensor.dtype)
    number = _defined(session, signature, args, kwargs, scan)
    spare = [reserve() for _ in range(MOST_RESULTS)]
    numbers = [number, *(one.number for one in scan.buffers), *scan.integers, *spare]
    try:
        answers = session.stream.ask(Kind.COMPUTE, pack_calls(numbers, scan.reals))
    except Exception:
        dead.extend(spare)  # it may have failed on one card alone
        raise
    items = pb.Results.FromString(bytes(answers[0])).items
    new = iter(spare)
    made = [_result(item, new) for item in items]
    aliases = signature.result_aliases(args, kwargs, len(made))
    made = [one if alias is None else scan.tensors[alias]
            for one, alias in zip(made, aliases, strict=True)]  # fmt: skip
    build = signature.builder(len(made))
    return made[0] if build is None else build(made)


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
