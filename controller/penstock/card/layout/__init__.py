"""How the bytes of a storage lie on the cards: whole, as partial sums, or split by rows."""

from penstock.card.layout.cut import Cut, LocalView, local_views, whole_view
from penstock.card.layout.placement import (
    PARTIAL,
    REDUCING,
    WHOLE,
    Layout,
    Partial,
    Reducing,
    Shard,
    Split,
    partial_of,
    reducing_to,
    shard_at,
    shard_of,
    split_at,
    split_rows,
)
from penstock.card.layout.shares import share_rows

__all__ = [
    "PARTIAL",
    "REDUCING",
    "WHOLE",
    "Cut",
    "Layout",
    "LocalView",
    "Partial",
    "Reducing",
    "Shard",
    "Split",
    "local_views",
    "partial_of",
    "reducing_to",
    "shard_at",
    "shard_of",
    "share_rows",
    "split_at",
    "split_rows",
    "whole_view",
]
