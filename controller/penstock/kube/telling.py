"""Events of Pods, for `kubectl describe`: one for each Pod and reason, the last word of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from penstock.kube.api import EVENTS

if TYPE_CHECKING:
    from penstock.kube.api import Api

MOST_CHARACTERS = 1000  # the API server takes 1024


@dataclass(frozen=True)
class PodName:
    """Of which Pod is told."""

    namespace: str
    name: str
    uid: str


async def tell(
    api: Api, pod: PodName, reason: str, text: str, *, component: str, warning: bool = False
) -> None:
    """Writes it over what was told before for that reason. Raises `ApiError`."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    digest = hashlib.sha256(f"{pod.uid} {component} {reason}".encode()).hexdigest()[:12]
    name = f"{pod.name[:200].strip('.-')}.{digest}"
    event = {
        "apiVersion": EVENTS.group_version,
        "kind": "Event",
        "metadata": {"name": name, "namespace": pod.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        },
        "reason": reason,
        "message": text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…",
        "type": "Warning" if warning else "Normal",
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "source": {"component": component},
        "reportingComponent": component,
    }
    await api.patch(EVENTS, name, event, pod.namespace, way="apply", manager=component)
