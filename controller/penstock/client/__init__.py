"""The library of the compute pool: `penstock.acquire` claims blocks for this process."""

from penstock.client.acquire import acquire
from penstock.client.card import Card

__all__ = ["Card", "acquire"]
