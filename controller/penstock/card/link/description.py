"""Description: what a worker tells of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Description:
    """What a worker tells of itself, beside its pid."""

    node: str
    device: str  # for people, for example "gpu 0"
    torch_version: str = ""
