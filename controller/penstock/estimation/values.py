"""`Values`: integers and booleans of a trace without data, for what depends on them.

A trace knows shapes only. Where a program routes by data (a mixture of experts: topk, then
nonzero), shapes follow from values. Integers and booleans that come from other integers are
computed; those that come from floats (topk, a comparison) are computed from normal random
floats of the right shape. So a router of eight experts gives each token two different ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from penstock.estimation.user_code import users_place
from penstock.model import PenstockError

_MOST_INTEGERS = 2**22  # elements that an operation may have to be computed, for its integers
_MOST_FLOATS = 2**16  # ... and for floats, which rarely decide anything
_MOST_DECIDING = 2**26  # ... and when the shape of its result depends on them
_POOLS = "max_pool"  # their indices decide nothing, and take long


class Values:
    """What is known of the content of a trace's tensors."""

    def __init__(self, fake_mode: Any) -> None:
        self._fake_mode = fake_mode
        self._known: Any = WeakTensorKeyDictionary()  # fake tensor -> real one
        self._guessed: Any = WeakTensorKeyDictionary()  # those that come from random floats
        self._random = torch.Generator().manual_seed(0)
        self.assumed: dict[str, str] = {}  # place in the user's code -> operation

    def learn(self, fake: torch.Tensor, real: torch.Tensor) -> None:
        """Keeps the content of a tensor."""
        self._known[fake] = real

    def follow(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Computes the content of an operation's result, if it is one that may decide."""
        given = [one for one in tree_flatten((args, kwargs))[0] if _is_tensor(one)]
        made = [one for one in tree_flatten(result)[0] if _is_tensor(one)]
        if not made or func.overloadpacket.__name__.startswith(_POOLS):
            return
        unknown = [one for one in given if not self._is_known(one)]
        wanted = any(not _is_float(one) for one in made)
        most = _MOST_INTEGERS if wanted else _MOST_FLOATS
        size = max(one.numel() for one in [*given, *made])
        random_float = not given and not wanted
        if (
            random_float
            or size > most
            or (unknown and not (wanted and all(map(_is_float, unknown))))
        ):
            self._forget_mutated(func, made)
            return
        reals = tree_flatten(self._compute(func, args, kwargs))[0]
        is_guess = bool(unknown) or any(one in self._guessed for one in given)
        for fake, real in zip(tree_flatten(result)[0], reals, strict=True):
            if _is_tensor(fake) and (not unknown or not _is_float(fake)):
                self._known[fake] = real
                if is_guess:
                    self._guessed[fake] = True

    def decide(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operation whose shape, or value, depends on content.

        Raises:
            PenstockError: the content is not known and cannot be assumed.
        """
        given = [one for one in tree_flatten((args, kwargs))[0] if _is_tensor(one)]
        name = str(func.overloadpacket)
        place = users_place() or "the model"
        unknown = [one for one in given if not self._is_known(one)]
        if sum(one.numel() for one in given) > _MOST_DECIDING or any(
            not _is_float(one) for one in unknown
        ):
            raise PenstockError(
                f"{place} depends on data",
                f"{name} needs values that a trace without data does not have",
                "give a --sample whose values decide, or write it with shapes that do not depend "
                "on data",
            )
        if unknown or any(one in self._guessed for one in given):
            self.assumed[place] = name
            if unknown and name == "aten._local_scalar_dense":
                return 1.0
        real = self._compute(func, args, kwargs)
        return tree_map(self._as_fake, real)

    def _is_known(self, one: torch.Tensor) -> bool:
        return one in self._known or not isinstance(one, FakeTensor)

    def _as_fake(self, one: Any) -> Any:
        if not _is_tensor(one):
            return one
        fake = self._fake_mode.from_tensor(one)
        self._known[fake] = one
        return fake

    def _compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        with _disable_current_modes(), torch.no_grad():
            reals, real_kwargs = tree_map(self._real, (args, kwargs))
            return func(*reals, **real_kwargs)

    def _real(self, one: Any) -> Any:
        if not _is_tensor(one):
            return one
        known = self._known.get(one)
        if known is not None:
            return known
        if not isinstance(one, FakeTensor):  # a constant of the program
            return one
        normal = torch.randn(one.shape, generator=self._random)
        return normal.to(one.dtype)

    def _forget_mutated(self, func: Any, made: list[torch.Tensor]) -> None:
        if func._schema.is_mutable:
            for one in made:
                self._known.pop(one, None)


def _is_tensor(one: Any) -> bool:
    return isinstance(one, torch.Tensor)


def _is_float(one: torch.Tensor) -> bool:
    return one.dtype.is_floating_point or one.dtype.is_complex
