"""Moves of a program to other cards: each buffer goes through the program's memory."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.card.device.buffer import live_buffers
from penstock.card.device.errors import failure_error
from penstock.card.frames import Kind, pack_poison, upload_frames
from penstock.card.layout import (
    WHOLE,
    Layout,
    Partial,
    Reducing,
    Shard,
    Split,
    shard_of,
    share_rows,
    split_at,
    split_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.card.cards import Cards
    from penstock.card.device.buffer import Buffer
    from penstock.card.device.session import Session


def contents(session: Session) -> Iterator[tuple[Buffer, memoryview | None]]:
    """All buffers with what is in them, one after another; None: it is missing.

    Afterwards no buffer is a partial sum. The caller holds the stream's lock.

    Raises:
        CardError: a card is lost.
    """
    stream = session.stream
    buffers = [one for one in live_buffers() if one.layout is not None]
    for buffer in buffers:
        if isinstance(buffer.layout, Reducing):
            session.reductions.finish(buffer)
        elif isinstance(buffer.layout, Partial) and buffer.sum_dtype is not None:
            session.reductions.reduce([buffer], buffer.sum_dtype)
    poisoned = stream.poisoned()
    for buffer in buffers:
        if buffer.number in poisoned:
            yield buffer, None
        else:
            split = buffer.layout if isinstance(buffer.layout, Split) else None
            yield buffer, memoryview(stream.download(buffer.number, split, 0, buffer.size_bytes))


def fill(
    cards: Cards,
    filled: Iterable[tuple[Buffer, memoryview | None]],
    former_speeds: tuple[float, ...],
) -> dict[Buffer, Layout]:
    """Gives buffers with these contents to other cards, and returns how they lie there.

    Raises:
        CardError: a card is lost.
        RuntimeError: a card has too little memory.
    """
    layouts: dict[Buffer, Layout] = {}
    for buffer, content in filled:
        if content is None:
            layouts[buffer] = WHOLE
            _poison(cards, buffer)
            continue
        layouts[buffer] = _new_layout(buffer, former_speeds, cards.speeds)
        parts = parts_of(content, layouts[buffer], len(cards.cards))
        for card, part in zip(cards.cards, parts, strict=True):
            for kind, body in upload_frames(buffer.number, part):
                card.link.post(kind, *body)
    _finish(cards)
    return layouts


def parts_of(content: memoryview, layout: Layout | None, cards: int) -> Sequence[memoryview]:
    """What of a buffer's content each card has."""
    if isinstance(layout, Split):
        return [content[low:high] for low, high in pairwise(layout.bounds)]
    return [content] * cards


def _poison(cards: Cards, buffer: Buffer) -> None:
    for card in cards.cards:
        card.link.post(Kind.POISON, pack_poison({buffer.number: buffer.size_bytes}))


def _finish(cards: Cards) -> None:
    """Waits until the new cards have everything. Raises why one of them has not."""
    for reply in [card.link.request(Kind.SYNCHRONIZE) for card in cards.cards]:
        reply.result()
    cause = cards.failures.take()
    if cause is not None:
        raise failure_error(*cause)


def _new_layout(
    buffer: Buffer, former_speeds: tuple[float, ...], speeds: tuple[float, ...]
) -> Layout:
    """How a buffer lies on cards of other speeds: split at rows as before, or whole."""
    layout = buffer.layout
    if not isinstance(layout, Split) or len(speeds) == 1:
        return WHOLE
    if speeds == former_speeds:
        return layout
    if isinstance(layout, Shard):
        return shard_of(buffer.rows, buffer.size_bytes, speeds) or WHOLE
    if not buffer.rows or any(bound * buffer.rows % buffer.size_bytes for bound in layout.bounds):
        return WHOLE
    row_bytes = buffer.size_bytes // buffer.rows
    # Rows may belong together, such as the tokens of one text: what tensors of the same batch are
    # cut at must stay the same.
    unit = math.gcd(*(bound // row_bytes for bound in layout.bounds))
    for one in (unit, 1):
        shares = share_rows(buffer.rows, speeds, one)
        if shares is not None:
            return split_rows(shares, row_bytes)
    return WHOLE


def cut_anew(
    buffer: Buffer, former: Split, former_speeds: tuple[float, ...], speeds: tuple[float, ...]
) -> Layout:
    """How a split buffer lies on the same cards with other speeds.

    A shard stays one, and what was split as a shard would be, such as an optimizer's state, stays
    split. All else becomes whole, and the next operation splits it as it needs it.
    """
    rows, size_bytes = buffer.rows, buffer.size_bytes
    before, after = (shard_of(rows, size_bytes, one) for one in (former_speeds, speeds))
    if before is None or after is None or before.bounds != former.bounds:
        return WHOLE
    return after if isinstance(former, Shard) else split_at(after.bounds)
