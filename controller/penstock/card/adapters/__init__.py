"""Adapters: what a worker needs to know of one kind of card. One file a kind."""

from penstock.card.adapters.adapter import Adapter

__all__ = ["Adapter"]
