"""`Sharding`: parameters of modules of which each card keeps its rows, so that large models fit."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, NamedTuple

from penstock.card.device.tensors import buffer_of, extent, shard_for
from penstock.card.layout import Shard
from penstock.card.names import SHARDING_VARIABLE
from penstock.model import PenstockError

if TYPE_CHECKING:
    import torch

    from penstock.card.device.buffer import Buffer
    from penstock.card.device.session import Session

MODES = ("off", "auto", "on")
# What a trained parameter needs times its own bytes: itself, its gradient, two moments of Adam.
COPIES = 4


class _Form(NamedTuple):
    """How a parameter lies in its storage."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class Sharding:
    """Decides whether the parameters of the program's modules are sharded, and does it.

    What is computed from shards alone lies like them, and so does the sum of a gradient: nothing
    else need be told of them.

    Attributes:
        mode: "on", "off", or "auto": once all parameters and what training adds to them need more
            than the smallest card had free at first.
        is_on: Whether parameters are sharded now.
    """

    def __init__(self, session: Session) -> None:
        """Takes the mode from the environment. Raises `PenstockError` if it is none."""
        self._session = session
        self._parameters: weakref.WeakKeyDictionary[Buffer, _Form] = weakref.WeakKeyDictionary()
        self._noted_bytes = 0
        self._room_bytes: int | None = None
        self.mode = os.environ.get(SHARDING_VARIABLE, "auto")
        if self.mode not in MODES:
            raise PenstockError(
                f"invalid ${SHARDING_VARIABLE}", f"it is {self.mode[:40]!r}",
                f"write one of {', '.join(MODES)}",
            )  # fmt: skip
        self.is_on = session.planner.is_sharding = self.mode == "on"

    def set_mode(self, mode: str) -> None:
        """Sets the mode, and shards the parameters that the program has if it says so.

        What is sharded stays so.

        Raises:
            ValueError: there is no such mode.
        """
        if mode not in MODES:
            raise ValueError(f"sharding is one of {', '.join(MODES)}, not {mode!r}")
        with self._session.stream.lock:
            self.mode = mode
            self._turn(is_on=mode == "on")
            self._decide()

    def add(self, parameter: torch.Tensor) -> None:
        """Takes a parameter of a module, which may be known already.

        Raises:
            CardError: a card is lost.
            RuntimeError: an operation has failed before.
        """
        if self.mode == "off":
            return
        buffer = buffer_of(parameter)
        form = _Form(tuple(parameter.shape), parameter.stride(), parameter.dtype)
        if extent(form.size, form.stride) * form.dtype.itemsize != buffer.size_bytes:
            return  # it shares its storage with others
        with self._session.stream.lock:
            if buffer not in self._parameters:
                self._parameters[buffer] = form
                self._noted_bytes += buffer.size_bytes
                self._decide()
            if self.is_on:
                self._shard(buffer, form)

    def add_like(self, tensor: torch.Tensor, parameter: torch.Tensor) -> None:
        """Shards a tensor that belongs to a parameter, if the parameter is sharded."""
        buffer = buffer_of(parameter)
        is_like = tensor.shape == parameter.shape and tensor.stride() == parameter.stride()
        if is_like and isinstance(buffer.layout, Shard):
            with self._session.stream.lock:
                form = _Form(tuple(tensor.shape), tensor.stride(), tensor.dtype)
                self._shard(buffer_of(tensor), form)

    def take(self) -> None:
        """Goes on with other cards, to which the program has moved."""
        self._room_bytes = None
        self._session.planner.is_sharding = self.is_on
        if self.is_on:
            self._shard_all()

    def _decide(self) -> None:
        """Turns sharding on if the mode is "auto" and the parameters need it."""
        if self.mode != "auto" or self.is_on:
            return
        if self._room_bytes is None:
            self._room_bytes = min(one.free_bytes for one in self._session.statistics())
        if COPIES * self._noted_bytes > self._room_bytes:
            self._noted_bytes = sum(one.size_bytes for one in self._parameters)  # some are freed
            if COPIES * self._noted_bytes > self._room_bytes:
                self._turn(is_on=True)

    def _turn(self, *, is_on: bool) -> None:
        self.is_on = self._session.planner.is_sharding = is_on
        self._session.plans.clear()
        if is_on:
            self._shard_all()

    def _shard_all(self) -> None:
        for buffer, form in list(self._parameters.items()):
            self._shard(buffer, form)

    def _shard(self, buffer: Buffer, form: _Form) -> None:
        shard = shard_for(*form, self._session.speeds)
        if shard is not None and buffer.layout is not shard:
            buffer.rows = form.size[0]
            self._session.change_layout(buffer, shard, form.dtype)
