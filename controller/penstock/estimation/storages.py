"""`Storages`: when each tensor's storage comes to life and ends, in a traced step."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.estimation.memory import Lifetime, Memory, Part, peak_memory

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


class Storages:
    """The storages of one trace. Views share one; a storage ends when nothing refers to it."""

    def __init__(self) -> None:
        self._moment = 0
        self._alive: dict[int, tuple[Any, Lifetime]] = {}
        self._ended: list[Lifetime] = []

    def see(self, tensors: Iterable[torch.Tensor], part: Part) -> None:
        """Keeps an eye on storages that were not seen before."""
        self._moment += 1
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key not in self._alive:
                life = Lifetime(storage.nbytes(), self._moment, None, part)
                self._alive[key] = (weakref.ref(storage, partial(self._end, key)), life)

    def rename(self, tensors: Iterable[torch.Tensor], part: Part) -> None:
        """Assigns storages to a part, as gradients are known as such only after the backward."""
        for tensor in tensors:
            key = tensor.untyped_storage()._cdata
            if key in self._alive:
                self._alive[key][1].part = part

    def restart(self) -> None:
        """Forgets what ended: the peak is that of what comes now."""
        self._ended.clear()

    def peak(self) -> Memory:
        """Memory at the peak since the restart."""
        return peak_memory([*self._ended, *(life for _, life in self._alive.values())])

    def _end(self, key: int, _: object) -> None:
        _, life = self._alive.pop(key)
        self._moment += 1
        life.end = self._moment
        self._ended.append(life)
