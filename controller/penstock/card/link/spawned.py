"""Spawned workers: a card's worker as a child of this process, over a socket pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.card.link.card_link import CardLink, LinkSettings
    from penstock.card.link.errors import OperationError
    from penstock.card.link.serve import Connection, Description


class SpawnedCard:
    """A child process and the link to it. It ends with this process, however this one ends."""

    link: CardLink
    pid: int

    def close(self, timeout_s: float = 10.0) -> int:
        """Closes the link, waits until the process has ended, and kills it if it does not end.

        Returns its exit status; the negative number of the signal that killed it.
        """
        raise NotImplementedError


def spawn(
    name: str,
    module: str,
    *,
    kinds: Mapping[int, str],
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    settings: LinkSettings | None = None,
    on_event: Callable[[int, memoryview], None] | None = None,
    on_fault: Callable[[OperationError], None] | None = None,
) -> SpawnedCard:
    """Starts `python -m MODULE --link-fd N ARGUMENTS` and connects to it.

    The module calls `inherited`, then `serve`. `variables` are added to this process's environment.
    The current folder is not searched for modules. The child does not see Ctrl-C.

    Raises:
        CardError: the process could not be started, or ended before it answered.
    """
    raise NotImplementedError


def inherited(descriptor: int, about: Description) -> Connection:
    """The connection of a spawned worker; `descriptor` is the number after `--link-fd`.

    The process ends at once when its parent ends.

    Raises:
        PenstockError: the descriptor is no connection to a front-end of this release.
    """
    raise NotImplementedError
