"""Start of the device: cards, kernels and torch's own settings, at the program's first use."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from penstock.card.device.autocast import register_autocast
from penstock.card.device.patches import patch
from penstock.card.device.registration import register
from penstock.card.device.session import Session

if TYPE_CHECKING:
    from penstock.card.cards import Cards

_lock = threading.RLock()
_session: Session | None = None
_is_registered = False


def start() -> None:
    """Hands torch the device's kernels. Cards are started when the first of them is called."""
    global _is_registered  # noqa: PLW0603 - torch has one device of this name
    with _lock:
        if not _is_registered:
            _is_registered = True
            register(session)
            register_autocast()
            patch()


def session() -> Session:
    """The program's cards, started at the first call. Raises `PenstockError`."""
    if _session is None or _owner != os.getpid():
        return _started()
    return _session


_owner = 0


def _started() -> Session:
    global _session, _owner  # noqa: PLW0603 - a program has one card
    from penstock.card.cards import start_cards

    with _lock:
        if _session is not None and _owner == os.getpid():
            return _session
        if _session is not None:
            raise RuntimeError(
                "Cannot re-initialize device penstock in forked subprocess. To use it in a child, "
                "start the child with the 'spawn' start method; DataLoader workers return tensors "
                "on the CPU"
            )
        cards: Cards = start_cards()
        _session = Session([one.link for one in cards.cards], cards.speeds, cards)
        _owner = os.getpid()
        return _session


def is_started() -> bool:
    """Whether the program has cards."""
    return _session is not None and _owner == os.getpid()


