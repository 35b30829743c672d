"""Bounds and timeouts of the link between a program and its cards."""

from __future__ import annotations

from dataclasses import dataclass

MOST_BODY_BYTES = 256 << 20  # of one frame; larger data goes in several frames


@dataclass(frozen=True)
class LinkSettings:
    """What a program may choose for its side of a link."""

    connect_s: float = 60.0  # a worker answers only after it has loaded its framework
    ping_period_s: float = 0.5
    silent_s: float = 1.75  # a card of which nothing has arrived for so long hangs
    queue_bytes: int = 64 << 20  # `CardLink.post` waits while more than this is queued
