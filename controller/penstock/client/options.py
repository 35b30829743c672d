"""Options of a claim as users write them: TFLOPS, priority, waiting time, memory, span, kind."""

from __future__ import annotations

import math
import re
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import TYPE_CHECKING

from penstock.model import PenstockError, QuantityError, nearest, parse_duration_ns, parse_memory
from penstock.model.names import check_tenant_name

if TYPE_CHECKING:
    from penstock.node.rpc import Span

MOST_BLOCKS = 2**32 - 1
MOST_WAIT_NS = 366 * 24 * 3600 * 10**9
_LEAST_PRIORITY, _MOST_PRIORITY = -(2**63), 2**63 - 1
_KIND = re.compile(r"[a-z][a-z0-9-]{0,31}")
_UNITS = re.compile(r"\s*([0-9.]+)\s*(?:T|TF|TFLOPS?|blocks?)\s*", re.IGNORECASE)


def blocks_of(tflops: object) -> int:
    """Blocks for `tflops`, a number above 0; a part of a block is rounded up.

    Raises:
        PenstockError: it is not such a number.
    """
    text = str(tflops)
    try:
        number = Decimal("nan") if isinstance(tflops, bool) else Decimal(text.strip())
    except InvalidOperation:
        number = Decimal("nan")
    if not number.is_finite():
        unit = _UNITS.fullmatch(text)
        raise PenstockError(
            f"invalid TFLOPS {text!r}", "it is not a number",
            f"write it without a unit: {unit[1]}" if unit else "write it like 50",
        )  # fmt: skip
    if number <= 0:
        raise PenstockError(
            f"invalid TFLOPS {text!r}", "it is not above 0",
            "claim at least 1; penstock pool release gives everything back",
        )  # fmt: skip
    if number > MOST_BLOCKS:
        raise PenstockError(
            f"invalid TFLOPS {text[:40]!r}", f"no pool has more than {MOST_BLOCKS} blocks",
            "penstock pool status shows how many this pool has",
        )  # fmt: skip
    return int(number.to_integral_value(ROUND_CEILING))


def priority_of(value: object) -> int:
    """The priority, a whole number; larger is more urgent. Raises `PenstockError`."""
    text = str(value).strip()
    if isinstance(value, (bool, float)) or not re.fullmatch(r"[+-]?\d{1,19}", text, re.ASCII):
        raise PenstockError(
            f"invalid priority {text[:40]!r}", "it is not a whole number",
            "write it like 10; a larger number is more urgent",
        )  # fmt: skip
    if not _LEAST_PRIORITY <= int(text) <= _MOST_PRIORITY:
        raise PenstockError(
            f"invalid priority {text}", "it does not fit into 64 bits", "write it like 10"
        )
    return int(text)


def wait_ns_of(wait: object) -> int:
    """Nanoseconds of "5m", of a number of seconds, or of None (not at all).

    Raises:
        PenstockError: it is not such a time, or it is longer than a year.
    """
    if wait is None:
        return 0
    try:
        wait_ns = _duration_ns(wait)
    except QuantityError as error:
        raise PenstockError(
            f"invalid waiting time {str(wait)[:40]!r}", str(error), "write it like 30s, 5m or 2h"
        ) from None
    if wait_ns > MOST_WAIT_NS:
        raise PenstockError(
            f"invalid waiting time {str(wait)[:40]!r}", "it is longer than a year",
            "write it like 30s, 5m or 2h",
        )  # fmt: skip
    return wait_ns


def _duration_ns(wait: object) -> int:
    """Nanoseconds; a number is in seconds. Raises `QuantityError` if it is not a time."""
    if not isinstance(wait, (int, float)) or isinstance(wait, bool):
        return parse_duration_ns(wait, or_none=True)
    if not math.isfinite(wait) or wait < 0:
        raise QuantityError(f"{wait!r} is not a number of seconds from 0 on")
    return int(wait * 1e9)


def memory_bytes_of(memory: object) -> int | None:
    """Bytes of a quantity such as "40Gi"; None stays None. Raises `PenstockError`."""
    if memory is None:
        return None
    try:
        return parse_memory(memory)
    except QuantityError as error:
        raise PenstockError(
            f"invalid memory {str(memory)[:40]!r}", str(error),
            "leave it out to get memory in proportion to the TFLOPS",
        ) from None  # fmt: skip


def kind_of(kind: str) -> str:
    """The kind of cards in small letters, empty for any. Raises `PenstockError`."""
    word = kind.strip().lower()
    if kind and not _KIND.fullmatch(word):
        raise PenstockError(
            f"invalid kind of card {kind[:40]!r}", "it is not a word of letters, digits and '-'",
            "name a kind such as gpu, npu or fpga; penstock pool status -o json lists them",
        )  # fmt: skip
    return word


def span_word(span: str) -> Span:
    """What the blocks may lie across. Raises `PenstockError` if there is no such word."""
    words: dict[str, Span] = {"card": "card", "node": "node", "pool": "pool"}
    if span in words:
        return words[span]
    near = nearest(span, words)
    raise PenstockError(
        f"invalid span {span[:40]!r}", "it is not card, node or pool",
        f"did you mean {near}?" if near
        else "card: one card; node: cards of one node; pool: any (for a virtual card)",
    )  # fmt: skip


def name_of(name: str | None) -> str:
    """The application's name, empty if the manager is to choose one. Raises `PenstockError`."""
    if name is None:
        return ""
    try:
        return check_tenant_name(name)
    except PenstockError as error:
        raise PenstockError(
            f"application name {name[:80]!r} is not usable", error.why, error.fix
        ) from None
