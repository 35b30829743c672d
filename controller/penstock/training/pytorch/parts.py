"""Parts of batches: each rank loads its own samples of what the program's `DataLoader` draws."""

from __future__ import annotations

import hashlib
from collections import deque
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset
from torch.utils.data.dataloader import DataLoader, _BaseDataLoaderIter

from penstock.model import PenstockError
from penstock.training.pytorch.backward import Mine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.training.pytorch.backward import WholeBatch
    from penstock.training.pytorch.random_states import Drawing

_plain_iter = DataLoader.__iter__
_plain_next = _BaseDataLoaderIter.__next__
_plain_sampler = DataLoader._index_sampler.fget


class Parts:
    """Splits the batches of training loops; loops that only evaluate have whole batches."""

    def __init__(
        self,
        whole: WholeBatch,
        rank: int,
        counts: Callable[[int], tuple[int, ...]],
        is_training: Callable[[], bool],
        before_loop: Callable[[], Drawing],
    ) -> None:
        """Takes what decides the split.

        `counts`: samples by rank, of a batch of so many samples.
        `before_loop`: called when a loop over a loader begins, on all ranks; by what it returns
        the loop draws its batches.
        """
        self._whole = whole
        self._rank = rank
        self._counts = counts
        self._is_training = is_training
        self._before_loop = before_loop

    def install(self) -> None:
        """Makes every `DataLoader` of this process load parts."""

        def begin(loader: DataLoader[Any]) -> Any:
            return self._begin(loader)

        def sampler(loader: DataLoader[Any]) -> _Sampler:
            return _Sampler(_plain_sampler(loader), self, loader)

        def take(running: Any) -> Any:
            return self._take(running)

        DataLoader.__iter__ = begin
        DataLoader._index_sampler = property(sampler)
        _BaseDataLoaderIter.__next__ = take

    def _begin(self, loader: DataLoader[Any]) -> Any:
        self._drawing = self._before_loop()
        with self._drawing.here():  # it draws the seed of its workers
            return _plain_iter(loader)

    def _take(self, running: Any) -> Any:
        drawn = running._sampler_iter
        if not isinstance(drawn, _Drawn):
            return _plain_next(running)
        if drawn.is_shared and drawn.last is not None and self._whole.backwards == drawn.backwards:
            raise PenstockError(
                "a loop over a DataLoader does not train", "there was no loss.backward() since the "
                "last batch, of which each card has only a part",
                "put a loop that evaluates into torch.no_grad(), or call model.eval() before it",
            )  # fmt: skip
        try:
            data = _plain_next(running)
        except StopIteration:
            self._whole.begin(None)
            raise
        drawn.last = drawn.waiting.popleft()
        self._whole.begin(drawn.last)
        drawn.backwards = self._whole.backwards
        return data

    def begin(self, sampler: Any, loader: DataLoader[Any]) -> _Drawn:
        """The indices of a loop."""
        is_shared = self._is_training()
        if is_shared and (
            loader.batch_sampler is None or isinstance(loader.dataset, IterableDataset)
        ):
            raise _refusal(loader)
        return _Drawn(self, iter(sampler), self._drawing, is_shared=is_shared)

    def share(self, indices: list[Any]) -> tuple[list[Any], Mine]:
        """This rank's indices of the next batch, and what they are of it.

        A rank without samples computes the batch's first one, which does not count.
        """
        counts = self._counts(len(indices))
        first = sum(counts[: self._rank])
        own = indices[first : first + counts[self._rank]]
        digest = hashlib.blake2b(repr(indices).encode(), digest_size=6).digest()
        return own or indices[:1], Mine(len(own), max(1, len(own)), int.from_bytes(digest))


class _Sampler:
    """The sampler of a loader, of which each rank loads a part."""

    def __init__(self, plain: Any, parts: Parts, loader: DataLoader[Any]) -> None:
        self._plain = plain
        self._parts = parts
        self._loader = loader

    def __len__(self) -> int:
        return len(self._plain)

    def __iter__(self) -> _Drawn:
        return self._parts.begin(self._plain, self._loader)


class _Drawn:
    """What a loop draws. `waiting`: the parts that are loaded and not yet with the program."""

    def __init__(
        self, parts: Parts, plain: Iterator[Any], drawing: Drawing, *, is_shared: bool
    ) -> None:
        self._parts = parts
        self._plain = plain
        self._drawing = drawing
        self.is_shared = is_shared
        self.waiting: deque[Mine | None] = deque()
        self.last: Mine | None = None
        self.backwards = -1

    def __iter__(self) -> _Drawn:
        return self

    def __next__(self) -> Any:
        with self._drawing.here():
            indices = next(self._plain)
        mine = None
        if self.is_shared:
            indices, mine = self._parts.share(list(indices))
        self.waiting.append(mine)
        return indices


def _refusal(loader: DataLoader[Any]) -> PenstockError:
    if loader.batch_sampler is None:
        why, fix = "it has no batches (batch_size=None)", "give the DataLoader a batch_size"
    else:
        why, fix = ("its dataset is a stream (IterableDataset), of which no sample can be picked",
                    "use a dataset with __getitem__ and __len__")  # fmt: skip
    return PenstockError("a DataLoader cannot be split over cards", why, fix)
