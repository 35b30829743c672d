"""The node's devices as its Node says them, and the way in which they are given out."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.kube.objects.api_client import NODES, ApiError
from penstock.kube.objects.cache import Cache
from penstock.kube.objects.names import BY_CLAIMS, BY_EXTENDER, DEVICES, DRIVER_UPGRADE, WAY
from penstock.kube.objects.node_devices import write_devices

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kube.objects.api_client import Api, Object
    from penstock.kube.objects.node_devices import NodeDevice

LONGEST_WAIT_S = 30.0


@dataclass(frozen=True)
class NodeSaid:
    """The Node as far as it concerns us."""

    uid: str
    devices: str | None  # the annotation
    way: str  # by which its devices are given out; empty: nobody said
    driver_upgrade: str  # how far one is, as the GPU operator's label says; empty: there is none


class Announcement:
    """Keeps both as they are; `changed` is called when the Node is another.

    With `way_is_labelled` the label is people's: what they write there is left alone, and decides
    which of the chart's agents the node gets next. Only what means nothing is put right.
    """

    def __init__(self, api: Api, node: str, way: str, *, way_is_labelled: bool = False) -> None:
        self._api = api
        self._node = node
        self._way = way
        self._way_is_labelled = way_is_labelled
        self.cache: Cache[NodeSaid] = Cache(
            api, NODES, read_node_said, fields=f"metadata.name={node}"
        )
        self.cache.changed.append(self._note)
        self.changed: list[Callable[[], None]] = []
        self.problem: ApiError | None = None
        """Why it is not written."""
        self._wake = asyncio.Event()
        self._wanted: str | None = None

    @property
    def node(self) -> NodeSaid | None:
        """As the server has it; None: there is none of that name."""
        return self.cache.objects.get(("", self._node))

    @property
    def is_settled(self) -> bool:
        """Whether the server has what is wanted."""
        there = self.node
        return there is not None and (there.devices, there.way) == (
            self._wanted,
            self._label(there),
        )

    def want(self, devices: tuple[NodeDevice, ...]) -> None:
        """The devices to be told."""
        self._wanted = write_devices(devices)
        self._wake.set()

    async def run(self) -> None:
        """Writes it when it differs, until it is cancelled."""
        await self.cache.ready()
        wait_s = 0.0
        while True:
            await self._wake.wait()
            self._wake.clear()
            there = self.node
            if there is None or self._wanted is None or self.is_settled:
                continue
            said = {"annotations": {DEVICES: self._wanted}}
            if (label := self._label(there)) != there.way:
                said["labels"] = {WAY: label}
            try:
                await self._api.patch(NODES, self._node, {"metadata": said})
                self.problem, wait_s = None, 0.0
            except ApiError as error:
                self.problem = error
                wait_s = min(LONGEST_WAIT_S, max(0.5, wait_s * 2))
                self._wake.set()
                await asyncio.sleep(wait_s)

    def _label(self, there: NodeSaid) -> str:
        """What the label is to say. A Node made anew says nothing: it goes on as before."""
        chosen = self._way_is_labelled and there.way in {BY_CLAIMS, BY_EXTENDER}
        return there.way if chosen else self._way

    def _note(self, key: object, old: NodeSaid | None, new: NodeSaid | None) -> None:  # noqa: ARG002 - as caches call
        self._wake.set()
        for tell in self.changed:
            tell()


def read_node_said(one: Object) -> NodeSaid:
    """Of a Node."""
    metadata = one["metadata"]
    return NodeSaid(
        metadata["uid"],
        (metadata.get("annotations") or {}).get(DEVICES),
        (metadata.get("labels") or {}).get(WAY, ""),
        (metadata.get("labels") or {}).get(DRIVER_UPGRADE, ""),
    )
