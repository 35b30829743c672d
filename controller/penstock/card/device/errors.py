"""Errors that a program gets for an operation that has failed on a card."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from penstock.card.link import OperationError
    from penstock_api.v1.card_ops_pb2 import Failure

_POISONED = "PoisonedError"
_KNOWN: dict[str, type[Exception]] = {
    "OutOfMemoryError": torch.OutOfMemoryError,
    "IndexError": IndexError,
    "LinAlgError": torch.linalg.LinAlgError,
    "NotImplementedError": NotImplementedError,
    "TypeError": TypeError,
    "ValueError": ValueError,
}


def failure_error(card: str, failure: Failure) -> RuntimeError:
    """The error for an operation that was called before, and has failed meanwhile."""
    is_memory = failure.type == "OutOfMemoryError"
    kind = torch.OutOfMemoryError if is_memory else RuntimeError
    said = failure.text if is_memory else f"{failure.type}: {failure.text}"
    fix = "use a smaller batch, and do the step again" if is_memory else "make it again"
    first, _, rest = said.partition("\n")
    text = f"{failure.operation} failed on {card}: {first} (what depends on it is missing: {fix})"
    return kind(f"{text}\n{rest}" if rest else text)


def request_error(error: OperationError) -> Exception:
    """The error for something whose result the program waits for."""
    if error.type_name == _POISONED:
        return RuntimeError(
            f"the content of this tensor is missing, because an operation has failed: {error.text} "
            "(make it again)"
        )
    return _KNOWN.get(error.type_name, RuntimeError)(f"{error.card}: {error.text}")
