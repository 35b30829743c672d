"""The devices of a node and their allocated shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model.quantity import FULL_DEVICE_PERMILLE
from penstock.model.share import NOTHING, Share

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


Placement = dict[str, dict[str, Share]]  # by container, then by device UUID


@dataclass(frozen=True)
class Device:
    """One device whose memory and compute time are allocated in shares."""

    uuid: str
    model: str
    memory_bytes: int
    cores_permille: int = FULL_DEVICE_PERMILLE
    tflops: float | None = None  # rated; None if not known
    healthy: bool = True


class Node:
    """The devices of a node. Allocations on a missing device are kept until it comes back.

    For speed, values are kept in lists parallel to `devices`, because they are read for every node
    and every Pod.
    """

    __slots__ = (
        "_at", "_taken", "best_bytes", "best_permille", "devices", "free_bytes", "free_permille",
        "largest_bytes", "largest_permille", "used",
    )  # fmt: skip

    def __init__(self, devices: Iterable[Device] = ()) -> None:
        self._taken: dict[str, Share] = {}
        self.set_devices(devices)

    def set_devices(self, devices: Iterable[Device]) -> None:
        """Replaces the devices; allocations are kept."""
        self.devices = tuple(devices)
        self._at = {one.uuid: at for at, one in enumerate(self.devices)}
        self.free_bytes = [0] * len(self.devices)
        """Negative if more is allocated than the device has, because the device may have shrunk."""
        self.free_permille = [0] * len(self.devices)
        for at in range(len(self.devices)):
            self._reckon(at)
        self._weigh()

    def take(self, shares: Mapping[str, Share]) -> None:
        """Allocates `shares`, by device UUID."""
        self._add(shares, 1)

    def give_back(self, shares: Mapping[str, Share]) -> None:
        """Frees `shares`, by device UUID."""
        self._add(shares, -1)

    def copy(self) -> Node:
        """An independent copy on which to try placements."""
        other = Node()
        other.set_devices(self.devices)
        other.take(self._taken)
        return other

    def taken(self, uuid: str) -> Share:
        """The allocated part of a device."""
        return self._taken.get(uuid, NOTHING)

    def left(self, uuid: str) -> Share | None:
        """The free part of a device, possibly negative; None if no healthy device has this UUID."""
        at = self._at.get(uuid)
        if at is None or not self.devices[at].healthy:
            return None
        return Share(self.free_bytes[at], self.free_permille[at])

    @property
    def is_over(self) -> bool:
        """Whether more of any device is allocated than the device has."""
        return any(free < 0 for free in (*self.free_bytes, *self.free_permille))

    @property
    def is_untaken(self) -> bool:
        """Whether nothing is allocated on any device."""
        return not self._taken

    def _add(self, shares: Mapping[str, Share], sign: int) -> None:
        for uuid, share in shares.items():
            was = self._taken.get(uuid, NOTHING)
            now = was + share if sign > 0 else was - share
            if now == NOTHING:
                self._taken.pop(uuid, None)
            else:
                self._taken[uuid] = now
            if uuid in self._at:
                self._reckon(self._at[uuid])
        self._weigh()

    def _reckon(self, at: int) -> None:
        device = self.devices[at]
        taken = self._taken.get(device.uuid, NOTHING)
        self.free_bytes[at] = device.memory_bytes - taken.memory_bytes
        self.free_permille[at] = device.cores_permille - taken.cores_permille

    def _weigh(self) -> None:
        """Caches values that are read hundreds of times between two changes of the node.

        `used` is how full the node is, from 0 to 1, according to the scarcer resource of each
        device. `best_*` is the most that is free on any healthy device, `largest_*` the most that
        any healthy device has in total. All are 0 if there is no healthy device.
        """
        healthy = [at for at, device in enumerate(self.devices) if device.healthy]
        self.best_bytes = max((self.free_bytes[at] for at in healthy), default=0)
        self.best_permille = max((self.free_permille[at] for at in healthy), default=0)
        self.largest_bytes = max((self.devices[at].memory_bytes for at in healthy), default=0)
        self.largest_permille = max((self.devices[at].cores_permille for at in healthy), default=0)
        total = 0.0
        for device, left_bytes, left_permille in zip(
            self.devices, self.free_bytes, self.free_permille, strict=True
        ):
            total += 1 - min(
                left_bytes / device.memory_bytes, left_permille / device.cores_permille
            )
        self.used = total / len(self.devices) if self.devices else 0.0
