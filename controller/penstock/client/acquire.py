"""`penstock.acquire`: claims blocks of a compute pool for this process."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.client import options, virtual_card
from penstock.client.activation import Activation, check_can_activate
from penstock.client.card import Card
from penstock.client.connect import PoolPlace
from penstock.model import PenstockError

if TYPE_CHECKING:
    from penstock.node.rpc import AcquireMessage, PoolClaim, PoolClient


def acquire(
    tflops: float,
    *,
    priority: int = 0,
    wait: str | float | None = None,
    memory: str | int | None = None,
    kind: str = "",
    span: str = "node",
    name: str | None = None,
    elastic: bool = False,
    pool: str | PoolPlace | None = None,
) -> Card:
    """Claims TFLOPS of a compute pool, and makes this process the application that has them.

    Call it before anything in the process loads CUDA. Children that the process starts belong to
    the application as well. The blocks are given back when the process ends, however it ends.

    With `span="pool"` the process itself has no part of this node's devices: agents start its
    cards, on whichever nodes, and PyTorch has them as device "penstock".

    Args:
        tflops: How many TFLOPS; a part of one is rounded up.
        priority: Larger is more urgent: less urgent applications may be suspended for this one.
        wait: How long to wait for room: "5m", or seconds; None: not at all.
        memory: Device memory, such as "40Gi"; None: in proportion to the TFLOPS.
        kind: The kind of cards, such as "gpu"; empty: any.
        span: What the blocks may lie across: "card", "node", or "pool" (for a virtual card).
        name: The application's name; None: the pool chooses one.
        elastic: Whether it may use what others on its cards leave idle.
        pool: HOST:PORT of a manager (its certificates are named by $PENSTOCK_POOL_CERT,
            $PENSTOCK_POOL_KEY and $PENSTOCK_POOL_CA), or the path of its socket; None: that of
            $PENSTOCK_POOL, or this machine's agent. A claim that does not go through this machine's
            agent only holds the blocks, and this process does not run as the application.

    Raises:
        PenstockError: there is no room (its `reason` is "not-enough-left") or the
            wait was in vain ("timed-out"), the claim is not
            allowed, no pool is found, or this process has already loaded CUDA.
    """
    from penstock.node.rpc import PoolClaim

    place = pool if isinstance(pool, PoolPlace) else PoolPlace(pool)
    claim = PoolClaim(
        blocks=options.blocks_of(tflops),
        priority=options.priority_of(priority),
        name=options.name_of(name),
        memory_bytes=options.memory_bytes_of(memory),
        kind=options.kind_of(kind),
        span=options.span_word(span),
        wait_ns=options.wait_ns_of(wait),
        mode="elastic" if elastic else "strict",
        command=(Path(sys.executable or "python").name, *sys.argv),
    )
    with place.connect() as client:
        is_here = client.target.server == "agent"
        if is_here and span != "pool":
            check_can_activate()
        update = granted(client, claim)
        return _card(place, client, update, is_virtual=is_here and span == "pool")


def granted(client: PoolClient, claim: PoolClaim) -> AcquireMessage:
    """The last answer about a claim, that it runs. Raises `PenstockError` if it is refused."""
    last: AcquireMessage | None = None
    with contextlib.closing(client.acquire(claim)) as updates:
        for update in updates:
            last = update
    if last is None:
        raise AssertionError("a claim ends with an error or with an answer")
    return last


def _card(
    place: PoolPlace, client: PoolClient, update: AcquireMessage, *, is_virtual: bool
) -> Card:
    from penstock.node.rpc import PoolLease

    application = update.application
    activation = lease = None
    try:
        if is_virtual:
            virtual_card.use(application, place.state_dir)
        elif update.environment:
            activation = Activation(update.environment)
        if update.HasField("lease"):
            lease = PoolLease(place.connect, application.name, update.lease.ToNanoseconds() / 1e9)
        return Card(place, application, activation, lease)
    except BaseException:
        with contextlib.suppress(PenstockError):
            client.release(application.name, reason="its holder could not start", only=application)
        raise
