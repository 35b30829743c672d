"""Memory of the cards, as `torch.cuda` shows it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.card.frames import Statistics


def memory_by_card() -> list[Statistics]:
    """The memory of each card, in their order; empty before they are started.

    Raises:
        CardError: a card is lost.
    """
    # Programs that never use the device load this module, too.
    start = sys.modules.get("penstock.card.device.start")
    return start.session().statistics() if start is not None and start.is_started() else []


def memory_allocated(device: Any = None) -> int:
    """Bytes of all tensors, on the card that has most of them. Raises `CardError`."""
    del device
    return max((one.used_bytes for one in memory_by_card()), default=0)


def max_memory_allocated(device: Any = None) -> int:
    """The most that `memory_allocated` has been. Raises `CardError`."""
    del device
    return max((one.peak_bytes for one in memory_by_card()), default=0)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes of the card that has the least free. Raises `CardError`."""
    del device
    one = min(memory_by_card(), key=lambda card: card.free_bytes, default=None)
    return (one.free_bytes, one.total_bytes) if one is not None else (0, 0)
