"""Leader election with a Lease: the holder stops before another candidate may begin.

Clocks of different machines are never compared. A candidate takes over the lease when its own
monotonic clock shows that the lease has been unchanged for its duration. The holder counts from
before it requested its last successful renewal, and stops earlier. A write that is still in flight
then fails if its object has changed, because every write names the version that was read.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from penstock.kube.objects.api_client import LEASES, ApiError
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.kube.objects.api_client import Api, Object

DURATION_S = 15  # without a renewal for this long, another candidate takes over
DEADLINE_S = 10.0  # without a renewal for this long, the holder stops
RETRY_S = 2.0


class NotLeadingError(PenstockError):
    """This process may not act at the moment."""

    def __init__(self) -> None:
        super().__init__(
            "this process is no longer the leader",
            "its lease could not be renewed in time",
            "do nothing: the current leader does this work",
        )


@dataclass
class Leader:
    """A candidate for one lease."""

    api: Api
    namespace: str
    name: str
    identity: str  # unique among candidates, even after a restart
    duration_s: int = DURATION_S
    deadline_s: float = DEADLINE_S
    retry_s: float = RETRY_S
    report: Callable[..., None] = lambda event, **fields: None  # noqa: ARG005
    _until_s: float = 0.0  # monotonic; this process leads until then
    _seen: Object | None = None  # the lease as last seen
    _seen_s: float = 0.0  # monotonic; time of its last change
    _problem: str = field(default="", repr=False)

    @property
    def leads(self) -> bool:
        """Whether this process may act now."""
        return time.monotonic() < self._until_s

    def check(self) -> None:
        """Raises `NotLeadingError` unless this process may act. Call this before every write."""
        if not self.leads:
            raise NotLeadingError

    async def run(self, act: Callable[[], Awaitable[None]]) -> None:
        """Runs `act` whenever this process leads, until cancelled; then releases the lease.

        When the lease is lost, `act` is cancelled and awaited. It should not return. Its exceptions
        are raised from this method.
        """
        try:
            while True:
                while not await self._try():
                    await asyncio.sleep(self.retry_s)
                self.report("leading", lease=f"{self.namespace}/{self.name}")
                await self._lead(act)
                self.report("not leading", lease=f"{self.namespace}/{self.name}")
        finally:
            await self._release()

    async def _lead(self, act: Callable[[], Awaitable[None]]) -> None:
        acting = asyncio.ensure_future(act())
        try:
            while self.leads:
                left_s = self._until_s - time.monotonic()
                done, _ = await asyncio.wait({acting}, timeout=min(self.retry_s, left_s))
                if done:
                    return await acting
                # A renewal that hangs must not let the process act for longer than it leads.
                left_s = self._until_s - time.monotonic()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._try(), max(0.0, left_s))
        finally:
            acting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await acting
        return None

    async def _try(self) -> bool:
        """Takes or renews the lease; returns whether this process holds it now."""
        began_s = time.monotonic()
        try:
            held = await asyncio.wait_for(self._ask(), self.deadline_s)
        except (ApiError, asyncio.TimeoutError) as error:
            if not isinstance(error, ApiError):
                self._say(f"no answer within {self.deadline_s:g} s")
            elif error.status not in {404, 409}:
                self._say(str(error))
            return False
        self._problem = ""
        if held is None:
            self._until_s = 0.0
            return False
        self._seen, self._seen_s = held, time.monotonic()
        self._until_s = began_s + self.deadline_s
        return True

    def _say(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self.report("lease not to be had", problem=problem)

    async def _ask(self) -> Object | None:
        """The lease, now held by this process; None if another process holds it."""
        try:
            found = await self.api.get(LEASES, self.name, self.namespace)
        except ApiError as error:
            if error.status != 404:
                raise
            return await self.api.create(LEASES, self._ours(None), self.namespace)
        version = found["metadata"]["resourceVersion"]
        if self._seen is None or version != self._seen["metadata"]["resourceVersion"]:
            self._seen, self._seen_s = found, time.monotonic()
        spec = found.get("spec") or {}
        holder = spec.get("holderIdentity")
        lasts_s = max(self.duration_s, spec.get("leaseDurationSeconds") or 0)
        if holder and holder != self.identity and time.monotonic() - self._seen_s < lasts_s:
            return None
        return await self.api.replace(LEASES, self._ours(found), self.namespace)

    def _ours(self, found: Object | None) -> Object:
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # for people
        before = (found or {}).get("spec") or {}
        renewed = before.get("holderIdentity") == self.identity
        turns = int(before.get("leaseTransitions") or 0)
        return {
            "apiVersion": LEASES.group_version,
            "kind": "Lease",
            "metadata": found["metadata"] if found else {"name": self.name},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": self.duration_s,
                "acquireTime": before.get("acquireTime", now) if renewed else now,
                "renewTime": now,
                "leaseTransitions": turns if renewed or found is None else turns + 1,
            },
        }

    async def _release(self) -> None:
        """Releases the lease, so that the next holder need not wait until it expires."""
        held, self._until_s = self.leads, 0.0
        if not held or self._seen is None:
            return
        freed = {**self._seen, "spec": {**self._seen["spec"], "holderIdentity": ""}}
        with contextlib.suppress(ApiError, asyncio.TimeoutError):
            await asyncio.wait_for(self.api.replace(LEASES, freed, self.namespace), self.retry_s)
