"""`penstock run --tflops`: a command with a virtual card of this node's compute pool."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
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
        sys.exit(run_application(place, claim, command, quiet=quiet, extra=card_variables))


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


def card_variables(granted: AcquireMessage) -> dict[str, str]:
    """The variable that tells a program of which cards its device consists.

    Processors stand in for the devices of a simulated machine, on which torch cannot compute.
    """
    from penstock.card.names import VARIABLE
    from penstock.node.tenants.tenant_processes import MACHINE_VARIABLE

    is_simulated = MACHINE_VARIABLE in granted.environment
    blocks: Counter[str] = Counter()
    for part in granted.application.parts:
        blocks[part.device_uuid] += part.last - part.first + 1
    visible = granted.environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    kinds = ["cpu" if is_simulated else f"cuda:{index}" for index in range(len(visible))]
    return {VARIABLE: ",".join(
        f"{kind}={blocks[uuid]}" if blocks[uuid] else kind
        for kind, uuid in zip(kinds, visible, strict=True)
    )}  # fmt: skip
