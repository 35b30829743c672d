"""`Known`: what the cards know how to call; what was not called for long is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

Key = TypeVar("Key")
Value = TypeVar("Value")


class Known(Generic[Key, Value]):
    """Values by key, at most `most`, in two generations.

    A value that is found in the recent generation costs one look-up: nothing is noted of it, as
    each call of the program finds one. Once that generation is full it becomes the former one, of
    which values come back when they are asked for, and those that did not come back are forgotten.
    So a program whose shapes repeat keeps all that it uses, if that is no more than half of `most`.

    The stream's lock is held while it is called.

    Attributes:
        recent: The recent generation, for look-ups alone.
    """

    __slots__ = ("_forget", "_former", "_half", "recent")

    def __init__(self, most: int, forget: Callable[[Collection[Value]], None]) -> None:
        """`forget` gets the values that the cache drops."""
        self.recent: dict[Key, Value] = {}
        self._former: dict[Key, Value] = {}
        self._half = most // 2
        self._forget = forget

    def __len__(self) -> int:
        return len(self.recent) + len(self._former)

    def find(self, key: Key) -> Value | None:
        """The value of a key, of either generation."""
        value = self.recent.get(key)
        if value is None:
            value = self._former.pop(key, None)
            if value is not None:
                self.add(key, value)
        return value

    def add(self, key: Key, value: Value) -> None:
        """Keeps a value for a key that has none."""
        if len(self.recent) >= self._half:
            gone, self._former, self.recent = self._former, self.recent, {}
            self._forget(gone.values())
        self.recent[key] = value

    def clear(self) -> None:
        """Forgets all."""
        gone = [*self.recent.values(), *self._former.values()]
        self.recent, self._former = {}, {}
        self._forget(gone)
