"""Start of the device: cards, kernels and torch's own settings, at the program's first use."""

from __future__ import annotations

import os
import threading
import warnings

import torch

from penstock.card import cards
from penstock.card.card_list import card_places, check_cards
from penstock.card.device.autocast import register_autocast
from penstock.card.device.follower import Follower
from penstock.card.device.publisher import Publisher
from penstock.card.device.registration import register
from penstock.card.device.session import Session
from penstock.card.device.tracing import trace_from_environment
from penstock.card.names import END_TORCH, FIRST_TORCH, POOL
from penstock.card.pool_cards import PoolApplication

_lock = threading.RLock()
_session: Session | None = None
_is_registered = False


def start() -> None:
    """Hands torch the device's kernels. Cards are started when the first of them is called.

    Raises:
        PenstockError: the program has no card, or torch is none that was tested.
    """
    global _is_registered  # noqa: PLW0603 - torch has one device of this name
    with _lock:
        if not _is_registered:
            check_cards()
            _warn_of_torch()
            _is_registered = True
            register(session)
            register_autocast()


def is_registered() -> bool:
    """Whether torch has the device's kernels."""
    return _is_registered


def _warn_of_torch() -> None:
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if not FIRST_TORCH <= release < END_TORCH:
        first, end = (".".join(map(str, one)) for one in (FIRST_TORCH, END_TORCH))
        warnings.warn(
            f"torch {torch.__version__} was not tested with device penstock; tested are releases "
            f"from {first} on, before {end}",
            stacklevel=3,
        )


def session() -> Session:
    """The program's cards, started at the first call. Raises `PenstockError`."""
    if _session is None or _owner != os.getpid():
        return _started()
    return _session


_owner = 0


def _started() -> Session:
    global _session, _owner  # noqa: PLW0603 - a program has one card
    with _lock:
        if _session is not None and _owner == os.getpid():
            return _session
        if _session is not None:
            raise RuntimeError(
                "Cannot re-initialize device penstock in forked subprocess. To use it in a child, "
                "start the child with the 'spawn' start method; DataLoader workers return tensors "
                "on the CPU"
            )
        _session = _begun(check_cards())
        _owner = os.getpid()
        Publisher(_session).start()
        trace_from_environment(_session)
        return _session


def _begun(text: str) -> Session:
    """The session of the cards that the program's environment lists."""
    if not text.startswith(POOL):
        return Session(cards.start_cards(card_places(text)))
    application = PoolApplication.parse(text)
    phase = application.running()
    begun = Session(cards.start_cards(phase.cards))
    Follower(begun, application, phase).start()
    return begun


def is_started() -> bool:
    """Whether the program has cards."""
    return _session is not None and _owner == os.getpid()
