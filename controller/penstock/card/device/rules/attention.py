"""The rule of fused attention: each sample of the batch is by itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from penstock.card.device.rules.offers import Cut, Decision, Question, decide, fresh_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

_BATCHED = ("gradient", "query", "key", "value", "out", "logsumexp")


def attention(question: Question) -> Iterator[Decision]:
    """Attention and its backward, split along the batch."""
    named = question.named
    own = [named[name] for name in _BATCHED if name in named]
    bias = named["bias"]
    offers = {one.cut.rows for one in own if one.cut is not None and one.cut.dim == 0}
    query, key = named["query"], named["key"]
    if not offers and math.prod(query.size) * key.size[2] >= question.least_work:
        rows = fresh_rows(query, 0, question.speeds)
        offers = {rows} if rows is not None else set()
    for rows in offers:
        cut = Cut(0, rows)
        uses: dict[int, Any] = {one.index: cut for one in own}
        if bias is not None and bias.rank == 4 and bias.size[0] == sum(rows):
            uses[bias.index] = cut
        yield decide(question, uses, [cut])
