"""How the bytes of a storage lie on the cards: whole, as partial sums, or split by rows."""

from penstock.card.layout.cut import Cut, LocalView, local_views, whole_view
from penstock.card.layout.placement import PARTIAL, REDUCING, WHOLE, Layout, Split, split_rows
from penstock.card.layout.shares import share_rows

__all__ = [
    "PARTIAL",
    "REDUCING",
    "WHOLE",
    "Cut",
    "Layout",
    "LocalView",
    "Split",
    "local_views",
    "share_rows",
    "split_rows",
    "whole_view",
]
