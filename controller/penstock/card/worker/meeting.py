"""`Meeting`: what cards tell each other so that they can connect."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Mapping

# A card that waits for another ends its wait when the program ends the group; this is the last
# resort if nobody does.
LONGEST_WAIT = timedelta(hours=24)


class Meeting(dist.Store):  # type: ignore[misc] # torch is not installed beside mypy
    """What cards tell each other so that they can connect: where each of them listens.

    It is in no file and at no port: the program passes on what each card has to say.
    """

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._waits = False

    def set(self, key: str, value: bytes) -> None:
        """Says something to all."""
        self.add_said({key: bytes(value)})

    def get(self, key: str) -> bytes:
        """What was said under this name; waits for it."""
        self.wait([key])
        return self._said[key]

    def wait(self, keys: list[str], timeout: timedelta = LONGEST_WAIT) -> None:
        """Waits until all of these were said."""
        with self._changed:
            self._waits = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: all(key in self._said for key in keys),
                                   timeout.total_seconds())  # fmt: skip

    def own(self) -> dict[str, bytes]:
        """What this card has said, once it begins to wait for the others."""
        with self._changed:
            self._changed.wait_for(lambda: self._waits)
            return dict(self._said)

    def add_said(self, said: Mapping[str, bytes]) -> None:
        """Adds what was said."""
        with self._changed:
            self._said.update(said)
            self._changed.notify_all()
