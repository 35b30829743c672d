"""Scheduler Lease: whether the scheduler next to this process is the leader.

Only one process may place Pods and change placements. The scheduler's requests reach only the
leader's extender. Resizes of running Pods start without a request, so they depend on the Lease.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from penstock.kube.objects.api_client import LEASES
from penstock.kube.objects.cache import Cache

if TYPE_CHECKING:
    from penstock.kube.objects.api_client import Api, Object
    from penstock.kube.objects.cache import Key

# Other replicas take a Lease that they have seen unchanged for 15 s (kube-scheduler's default). So
# this process stops acting when it has seen no renewal for ten seconds. Clocks of different
# machines are never compared.
STALE_S = 10.0


class Leading:
    """Follows the Lease, where a scheduler's identity is `<its host's name>_<something>`."""

    def __init__(self, api: Api, namespace: str, name: str, host: str = "") -> None:
        """`host` is the scheduler's host name, by default ours, because one Pod runs both."""
        self._holder = f"{host or socket.gethostname()}_"
        self._cache = Cache(api, LEASES, _read, namespace=namespace, fields=f"metadata.name={name}")
        self._cache.changed.append(self._note)
        self._renewed_s: float | None = None
        self._since_s: float | None = None

    async def run(self) -> None:
        """Follows the Lease until cancelled."""
        await self._cache.run()

    def __call__(self) -> bool:
        """Whether the scheduler next to this process leads."""
        return self._renewed_s is not None and time.monotonic() - self._renewed_s < STALE_S

    @property
    def since_s(self) -> float | None:
        """Monotonic start time of its uninterrupted leadership; None if it does not lead."""
        return self._since_s if self() else None

    def _note(self, _: Key, old: tuple[str, str] | None, new: tuple[str, str] | None) -> None:
        if new is None or not new[0].startswith(self._holder):
            self._renewed_s = self._since_s = None
        elif old is not None and not self._cache.is_listing:  # a listed Lease may be old
            if self._since_s is None or not self():
                self._since_s = time.monotonic()
            self._renewed_s = time.monotonic()


def _read(one: Object) -> tuple[str, str]:
    spec = one.get("spec") or {}
    return str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or "")
