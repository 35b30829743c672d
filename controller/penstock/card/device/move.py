"""Moves of a program to other cards: each buffer goes through the program's memory."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.card.device.buffer import live_buffers
from penstock.card.device.errors import failure_error
from penstock.card.frames import Kind, pack_poison, upload_frames
from penstock.card.layout import PARTIAL, REDUCING, WHOLE, Layout, Split, share_rows, split_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.card.cards import Cards
    from penstock.card.device.buffer import Buffer
    from penstock.card.device.session import Session


def copy_buffers(session: Session, cards: Cards) -> dict[Buffer, Layout]:
    """Copies all buffers to other cards, and returns how they lie there.

    Afterwards no buffer is a partial sum. The caller holds the stream's lock.

    Raises:
        CardError: a card of either side is lost.
        RuntimeError: an operation has failed before, or a new card has too little memory.
    """
    stream = session.stream
    stream.check()
    buffers = [one for one in live_buffers() if one.layout is not None]
    for buffer in buffers:
        if buffer.layout is REDUCING:
            session.reductions.finish(buffer)
        elif buffer.layout is PARTIAL and buffer.sum_dtype is not None:
            session.reductions.reduce([buffer], buffer.sum_dtype)
    poisoned = stream.poisoned()
    layouts: dict[Buffer, Layout] = {}
    for buffer in buffers:
        if buffer.number in poisoned:
            layouts[buffer] = WHOLE
            _poison(cards, buffer)
        else:
            layouts[buffer] = _new_layout(buffer, session.speeds, cards.speeds)
            _copy(session, cards, buffer, layouts[buffer])
    _finish(cards)
    return layouts


def parts_of(content: memoryview, layout: Layout | None, cards: int) -> Sequence[memoryview]:
    """What of a buffer's content each card has."""
    if isinstance(layout, Split):
        return [content[low:high] for low, high in pairwise(layout.bounds)]
    return [content] * cards


def _copy(session: Session, cards: Cards, buffer: Buffer, layout: Layout) -> None:
    former = buffer.layout if isinstance(buffer.layout, Split) else None
    content = memoryview(session.stream.download(buffer.number, former, 0, buffer.size_bytes))
    parts = parts_of(content, layout, len(cards.cards))
    for card, part in zip(cards.cards, parts, strict=True):
        for kind, body in upload_frames(buffer.number, part):
            card.link.post(kind, *body)


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
