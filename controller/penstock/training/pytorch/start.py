"""Start of a rank: what is put between an ordinary program and torch."""

from __future__ import annotations

import os
import random
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from penstock.training.names import VARIABLE, place
from penstock.training.pytorch import batch_norm
from penstock.training.pytorch.backward import WholeBatch, whole_value
from penstock.training.pytorch.parts import Parts
from penstock.training.pytorch.random_states import Drawing
from penstock.training.pytorch.ranks import TorchRanks
from penstock.training.speeds import Speeds
from penstock.training.split import split_batch, unequal

if TYPE_CHECKING:
    from penstock.training.names import Place


def start() -> None:
    """Makes this process the rank that its environment names. Raises `PenstockError`."""
    mine = place()
    if mine is None or torch.distributed.is_initialized():
        return
    # A child that the program starts is a process of its own, not a second rank.
    del os.environ[VARIABLE]
    torch.manual_seed(mine.seed)
    random.seed(mine.seed)
    Rank(mine).install()


class Rank:
    """This process among those that train together."""

    def __init__(self, mine: Place) -> None:
        self._ranks = _connected(mine)
        self._speeds = Speeds(mine.weights)
        self._whole = WholeBatch(self._ranks, self._speeds.add)
        self._parts = Parts(
            self._whole, mine.rank, self._counts, self._is_training, self._before_loop
        )
        # In the order in which the program made them, which is the same on all ranks.
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self._evaluated: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._synchronized: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def install(self) -> None:
        """Puts itself between the program and torch."""
        torch.autograd.backward = self._whole.backward
        self._parts.install()
        batch_norm.install(self._whole, self._ranks)
        self._watch_optimizers()
        self._watch_modes()
        _read_whole_values()
        self._write_once()

    def _watch_optimizers(self) -> None:
        plain = torch.optim.Optimizer.__init__

        def init(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            plain(optimizer, *args, **kwargs)
            self._optimizers.append(weakref.ref(optimizer))

        torch.optim.Optimizer.__init__ = init

    def _watch_modes(self) -> None:
        plain = torch.nn.Module.train

        def train(module: torch.nn.Module, mode: bool = True) -> torch.nn.Module:
            (self._evaluated.discard if mode else self._evaluated.add)(module)
            return plain(module, mode)

        torch.nn.Module.train = train

    def _write_once(self) -> None:
        """Checkpoints are written by rank 0, and read when it has come to the same line."""
        plain_save, plain_load = torch.save, torch.load

        def save(made: Any, file: Any, *args: Any, **kwargs: Any) -> None:
            if self._ranks.rank == 0 or not isinstance(file, (str, os.PathLike)):
                plain_save(made, file, *args, **kwargs)

        def load(file: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, (str, os.PathLike)):
                self._ranks.gather([0.0])
            return plain_load(file, *args, **kwargs)

        torch.save, torch.load = save, load

    def _is_training(self) -> bool:
        """Whether a loop that begins now trains: gradients are on, and so is the model's mode."""
        if not torch.is_grad_enabled():
            return False
        trained = {id(one) for one in self._trained()}
        return not any(
            not module.training and any(id(one) in trained for one in module.parameters())
            for module in self._evaluated
        )

    def _trained(self) -> list[torch.Tensor]:
        living = [one for ref in self._optimizers if (one := ref()) is not None]
        return [one for optimizer in living for group in optimizer.param_groups
                for one in group["params"]]  # fmt: skip

    def _before_loop(self) -> Drawing:
        """All ranks draw the same batches, and begin with the same parameters."""
        drawing = Drawing(self._ranks)
        new = [one for one in self._trained() if one not in self._synchronized]
        if new:
            with torch.no_grad():
                self._ranks.copy_first(new)
            for one in new:
                self._synchronized[one] = True
        return drawing

    def _counts(self, rows: int) -> tuple[int, ...]:
        return unequal(split_batch(rows, self._speeds.weights))


def _read_whole_values() -> None:
    plain_item, plain_float = torch.Tensor.item, torch.Tensor.__float__

    def item(tensor: torch.Tensor) -> Any:
        value = whole_value(tensor)
        return plain_item(tensor) if value is None else value

    def to_float(tensor: torch.Tensor) -> float:
        value = whole_value(tensor)
        return plain_float(tensor) if value is None else value

    torch.Tensor.item, torch.Tensor.__float__ = item, to_float


def _connected(mine: Place) -> TorchRanks:
    host, _, port = mine.store.rpartition(":")
    store = torch.distributed.TCPStore(host, int(port), mine.size, is_master=mine.rank == 0)
    torch.distributed.init_process_group("gloo", store=store, rank=mine.rank, world_size=mine.size)
    return TorchRanks()
