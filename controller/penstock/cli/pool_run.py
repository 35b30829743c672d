"""`penstock run --tflops`: a command with a virtual card of the compute pool of this node."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from typing import TYPE_CHECKING

from penstock.cli.say import say

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.node.rpc import AcquireMessage, PoolClaim

NO_ROOM = 75  # EX_TEMPFAIL: the same claim may be granted later


def run_in_pool(
    claim: PoolClaim, command: list[str], state_dir: Path | None, *, quiet: bool
) -> None:
    """Runs the command as an application of the pool, with a card; exits with its exit code.

    Raises:
        PenstockError: the claim is not allowed, or there is no agent of a pool here.
    """
    from penstock.cli.pool_application import run_application
    from penstock.client.connect import PoolPlace

    place = PoolPlace(None, None, None, None, state_dir)
    with exit_without_room():
        environment = functools.partial(card_environment, state_dir)
        sys.exit(run_application(place, claim, command, quiet=quiet, environment=environment))


@contextlib.contextmanager
def exit_without_room() -> Iterator[None]:
    """Ends the process with `NO_ROOM` if the pool refuses a claim for want of room."""
    from penstock.model import PenstockError

    try:
        yield
    except PenstockError as error:
        if error.reason not in {"not-enough-left", "timed-out"}:
            raise
        say(error)
        sys.exit(NO_ROOM)


def card_environment(state_dir: Path | None, granted: AcquireMessage) -> dict[str, str]:
    """The environment of a program whose device is made of cards that the pool starts."""
    from penstock.client.virtual_card import variables_of

    return {**os.environ, **variables_of(granted.application, state_dir)}
