"""Forks of a program that uses cards: children, such as DataLoader workers, must not disturb it.

A child has copies of the sockets and of the links, but none of the threads. So each link in a child
fails, its waits end, and its copies of the sockets are closed: closing affects only the child,
where shutting down would end the parent's connections.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """What must change in a forked child."""

    def disown(self) -> None:
        """Called in the child, which has one thread. It must not take a lock."""


_all: weakref.WeakSet[Forked] = weakref.WeakSet()


def register(one: Forked) -> None:
    """Calls `one.disown` in each child that is forked from now on."""
    _all.add(one)


def _in_child() -> None:
    for one in list(_all):
        one.disown()
    _all.clear()


os.register_at_fork(after_in_child=_in_child)
