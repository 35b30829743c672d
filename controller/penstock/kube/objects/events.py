"""Kubernetes Events for `kubectl describe`: one for each object and reason, kept up to date."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from penstock.kube.objects.api_client import EVENTS, ApiError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kube.objects.api_client import Api, Object

CONTROL, PLACE, NODE = "penstock-control", "penstock-place", "penstock.io/node"  # components
OURS = frozenset({CONTROL, PLACE, NODE})
MOST_CHARACTERS = 1000  # the API server accepts 1024
KEPT_S = 3600.0


@dataclass(frozen=True)
class About:
    """The object that an event is about."""

    version: str  # "v1", "apps/v1"
    kind: str
    namespace: str
    name: str
    uid: str

    @classmethod
    def pod(cls, namespace: str, name: str, uid: str) -> About:
        """A reference to a Pod."""
        return cls("v1", "Pod", namespace, name, uid)


def event_of(
    about: About,
    reason: str,
    text: str,
    *,
    component: str,
    warning: bool = False,
    count: int = 1,
    first_s: float,
    last_s: float,
    key: str = "",
) -> Object:
    """Builds an Event, whose name depends on object, component, reason and `key`.

    Pass a `key` if one reason needs several Events. Times are in seconds since 1970 (UTC).
    """
    digest = hashlib.sha256(f"{about.uid} {component} {reason} {key}".encode()).hexdigest()[:16]
    return {
        "apiVersion": EVENTS.group_version,
        "kind": "Event",
        "metadata": {
            "name": f"{about.name[:200].strip('.-')}.{digest}",
            "namespace": about.namespace,
        },
        "involvedObject": {
            "apiVersion": about.version,
            "kind": about.kind,
            "namespace": about.namespace,
            "name": about.name,
            "uid": about.uid,
        },
        "reason": reason,
        "message": text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…",
        "type": "Warning" if warning else "Normal",
        "count": count,
        "firstTimestamp": _stamp(first_s),
        "lastTimestamp": _stamp(last_s),
        "source": {"component": component},
        "reportingComponent": component,
    }


async def put(api: Api, event: Object) -> None:
    """Writes an Event, which replaces an earlier Event of the same name. Raises `ApiError`."""
    name, namespace = event["metadata"]["name"], event["metadata"]["namespace"]
    manager = event["reportingComponent"]
    await api.patch(EVENTS, name, event, namespace, way="apply", manager=manager)


@dataclass(frozen=True)
class _Told:
    text: str
    count: int
    first_s: float  # since 1970 (UTC)
    at_s: float  # on the monotonic clock


class Events:
    """The Events of one component. The counts of repeated Events start anew with each process."""

    def __init__(
        self, api: Api, report: Callable[..., None], component: str, host: str = ""
    ) -> None:
        """Creates a writer; `host` is the node's name if the component reports only on its Pods."""
        self._host = host
        self._api = api
        self._report = report
        self._component = component
        self._told: dict[tuple[str, str], _Told] = {}

    async def write(
        self, about: About, reason: str, text: str, *, warning: bool = False, again: bool = False
    ) -> None:
        """Writes an Event, but not twice in a row with the same text unless `again` is set.

        An Event that cannot be written is lost, and the loss is reported: nothing waits for Events.
        """
        try:
            await self.tell(about, reason, text, warning=warning, again=again)
        except ApiError as error:
            if error.status not in {403, 404}:  # the namespace is being deleted, or gone
                self._report("event lost", about=f"{about.kind} {about.name}", problem=str(error))

    async def tell(
        self, about: About, reason: str, text: str, *, warning: bool = False, again: bool = False
    ) -> None:
        """Like `write`, but raises `ApiError` if the Event cannot be written."""
        key = about.uid, reason
        before = self._told.get(key)
        if before and before.text == text and not again:
            return
        now_s = time.time()
        told = _Told(
            text,
            before.count + 1 if before else 1,
            before.first_s if before else now_s,
            time.monotonic(),
        )
        self._told[key] = told
        self._forget()
        event = event_of(
            about, reason, text, component=self._component, warning=warning,
            count=told.count, first_s=told.first_s, last_s=now_s,
        )  # fmt: skip
        if self._host:
            event["source"]["host"] = event["reportingInstance"] = self._host
        await put(self._api, event)

    def _forget(self) -> None:
        since_s = time.monotonic() - KEPT_S
        if len(self._told) > 10_000:
            self._told = {key: told for key, told in self._told.items() if told.at_s > since_s}


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
