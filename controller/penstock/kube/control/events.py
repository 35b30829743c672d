"""Events about objects, for `kubectl describe`: one for each object and reason, kept up to date."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from penstock.kube.api import EVENTS, ApiError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kube.api import Api, Object

COMPONENT = "penstock-control"
MOST_CHARACTERS = 1000  # the API server takes 1024
KEPT_S = 3600.0


@dataclass(frozen=True)
class About:
    """What an event is about."""

    version: str  # "v1", "apps/v1"
    kind: str
    namespace: str
    name: str
    uid: str


class Events:
    """Writes them. One that cannot be written is lost, and said so: nothing waits for an event."""

    def __init__(self, api: Api, report: Callable[..., None], component: str = COMPONENT) -> None:
        self._api = api
        self._report = report
        self._component = component
        self._written: dict[tuple[str, str], tuple[str, float]] = {}

    async def write(
        self, about: About, reason: str, text: str, *, warning: bool = False, again: bool = False
    ) -> None:
        """Once for the same text, unless it is to be said `again`."""
        text = text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"
        key = about.uid, reason
        if not again and self._written.get(key, ("", 0.0))[0] == text:
            return
        self._written[key] = text, time.monotonic()
        self._forget()
        try:
            await self._put(about, reason, text, warning=warning)
        except ApiError as error:
            if error.status not in {403, 404}:  # the namespace is going, or gone
                self._report("event lost", about=f"{about.kind} {about.name}", problem=str(error))

    async def _put(self, about: About, reason: str, text: str, *, warning: bool) -> None:
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        digest = hashlib.sha256(f"{about.uid} {reason}".encode()).hexdigest()[:12]
        name = f"{about.name[:200].strip('.-')}.{digest}"
        event: Object = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": about.namespace},
            "involvedObject": {
                "apiVersion": about.version,
                "kind": about.kind,
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid,
            },
            "reason": reason,
            "message": text,
            "type": "Warning" if warning else "Normal",
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self._api.create(EVENTS, event, about.namespace)
        except ApiError as error:
            if error.code != "AlreadyExists":
                raise
            found = await self._api.get(EVENTS, name, about.namespace)
            changed = {
                "message": text,
                "lastTimestamp": now,
                "count": int(found.get("count") or 1) + 1,
            }
            await self._api.patch(EVENTS, name, changed, about.namespace)

    def _forget(self) -> None:
        since_s = time.monotonic() - KEPT_S
        if len(self._written) > 10_000:
            self._written = {k: v for k, v in self._written.items() if v[1] > since_s}
