"""Events for Pods that request a resize of a claim, which is not possible."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from penstock.kube.kubelet.claim import CLAIM
from penstock.kube.objects.api_client import ApiError
from penstock.kube.objects.events import NODE, About, Events
from penstock.kube.objects.resize_annotation import CLAIMS_DO_NOT_CHANGE
from penstock.model import PenstockError

if TYPE_CHECKING:
    from penstock.kube.kubelet.allocation import Tenants
    from penstock.kube.kubelet.node_pods import NodePod, NodePods
    from penstock.kube.objects.api_client import Api
    from penstock.kube.objects.cache import Key

REFUSED = "VgpuResizeRefused"
AGAIN_S = 5.0
Log = Any  # log(event, **fields)


class Unresizable:
    """Writes an Event for each Pod that requests a resize of a claim."""

    def __init__(self, api: Api, tenants: Tenants, pods: NodePods, node: str, log: Log) -> None:
        self._events = Events(api, log, NODE, node)
        self._tenants = tenants
        self._pods = pods
        self._log = log
        self._asking: dict[str, NodePod] = {}  # by uid; without an Event yet
        self._wake = asyncio.Event()
        pods.cache.changed.append(self._note)

    async def run(self) -> None:
        """Writes Events until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._tell()
            except PenstockError as error:
                self._log("not told that claims do not change", why=str(error))
                await asyncio.sleep(AGAIN_S)
                self._wake.set()

    def _note(self, _: Key, old: NodePod | None, new: NodePod | None) -> None:
        if new is None or not new.asked or not new.claims:
            if old is not None:
                self._asking.pop(old.uid, None)
        elif old is None or old.asked != new.asked:
            self._asking[new.uid] = new
            self._wake.set()

    async def _tell(self) -> None:
        """Writes due Events. Raises `PenstockError` if agent or API server do not respond."""
        if not self._asking:
            return
        owned = await self._tenants.owned()
        ours = {
            (one.labels["namespace"], one.labels[CLAIM])
            for one in owned.values()
            if CLAIM in one.labels
        }
        for uid, pod in list(self._asking.items()):
            if any((pod.namespace, claim) in ours for claim in pod.claims):
                about = About.pod(pod.namespace, pod.name, uid)
                try:
                    await self._events.tell(
                        about, REFUSED, CLAIMS_DO_NOT_CHANGE, warning=True, again=True
                    )
                except ApiError as error:
                    if error.is_passing:
                        raise
            self._asking.pop(uid, None)
