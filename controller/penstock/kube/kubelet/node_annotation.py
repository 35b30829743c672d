"""Annotation and label of the Node, which publish its devices and its allocation mode."""

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
    """The parts of the Node object that concern us."""

    uid: str
    devices: str | None  # the annotation
    way: str  # allocation mode of its devices; empty if not set
    driver_upgrade: str  # state of a driver upgrade in the GPU operator's label; empty if none


class Announcement:
    """Maintains annotation and label on the Node; calls `changed` when the Node changes.

    With `way_is_labelled`, administrators own the label. Their value is kept, and decides which of
    the chart's agents the node gets next. Only an invalid value is corrected.
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
        """Why annotation and label could not be written; None if they could."""
        self._wake = asyncio.Event()
        self._wanted: str | None = None

    @property
    def node(self) -> NodeSaid | None:
        """The Node as the server has it; None if there is no Node of that name."""
        return self.cache.objects.get(("", self._node))

    @property
    def is_settled(self) -> bool:
        """Whether the server has the wanted annotation and label."""
        there = self.node
        return there is not None and (there.devices, there.way) == (
            self._wanted,
            self._label(there),
        )

    def want(self, devices: tuple[NodeDevice, ...]) -> None:
        """Sets the devices to publish."""
        self._wanted = write_devices(devices)
        self._wake.set()

    async def run(self) -> None:
        """Writes annotation and label when they differ, until cancelled."""
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
        """The wanted label. A Node that was created again has no label, and keeps its mode."""
        chosen = self._way_is_labelled and there.way in {BY_CLAIMS, BY_EXTENDER}
        return there.way if chosen else self._way

    def _note(self, key: object, old: NodeSaid | None, new: NodeSaid | None) -> None:  # noqa: ARG002 - as caches call
        self._wake.set()
        for tell in self.changed:
            tell()


def read_node_said(one: Object) -> NodeSaid:
    """Reads a Node object."""
    metadata = one["metadata"]
    return NodeSaid(
        metadata["uid"],
        (metadata.get("annotations") or {}).get(DEVICES),
        (metadata.get("labels") or {}).get(WAY, ""),
        (metadata.get("labels") or {}).get(DRIVER_UPGRADE, ""),
    )
