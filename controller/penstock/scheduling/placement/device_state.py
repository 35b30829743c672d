"""The devices of a node and their allocated shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model.quantity import FULL_DEVICE_PERMILLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True)
class Share:
    """Part of one device."""

    memory_bytes: int
    cores_permille: int


Placement = dict[str, dict[str, Share]]  # by container, then by device UUID
NOTHING = Share(0, 0)


@dataclass(frozen=True)
class Device:
    """One device of which shares are allocated."""

    uuid: str
    model: str
    memory_bytes: int
    cores_permille: int = FULL_DEVICE_PERMILLE
    tflops: float | None = None  # rated; None: not known
    healthy: bool = True


class Node:
    """The devices of a node. Allocations on a device that is gone are kept until it comes back.

    The lists are parallel to `devices`, for speed: they are read for every node and every Pod.
    """

    __slots__ = (
        "_at", "_taken", "best_bytes", "best_permille", "devices", "free_bytes", "free_permille",
        "largest_bytes", "largest_permille", "used",
    )  # fmt: skip

    def __init__(self, devices: Iterable[Device] = ()) -> None:
        self._taken: dict[str, Share] = {}
        self.set_devices(devices)

    def set_devices(self, devices: Iterable[Device]) -> None:
        """Replaces the devices; allocations stay."""
        self.devices = tuple(devices)
        self._at = {one.uuid: at for at, one in enumerate(self.devices)}
        self.free_bytes = [0] * len(self.devices)
        """Below 0 if more is allocated than the device has: it may have shrunk."""
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
        """An independent copy, to try placements on."""
        other = Node()
        other.set_devices(self.devices)
        other.take(self._taken)
        return other

    def taken(self, uuid: str) -> Share:
        """The allocated part of a device."""
        return self._taken.get(uuid, NOTHING)

    def left(self, uuid: str) -> Share | None:
        """The free part of a healthy device, which may be below 0; None: there is none such."""
        at = self._at.get(uuid)
        if at is None or not self.devices[at].healthy:
            return None
        return Share(self.free_bytes[at], self.free_permille[at])

    @property
    def is_over(self) -> bool:
        """Whether more of any device is allocated than it has."""
        return any(free < 0 for free in (*self.free_bytes, *self.free_permille))

    @property
    def is_untaken(self) -> bool:
        """Whether nothing is allocated on any device."""
        return not self._taken

    def _add(self, shares: Mapping[str, Share], sign: int) -> None:
        for uuid, share in shares.items():
            was = self._taken.get(uuid, NOTHING)
            now = Share(
                was.memory_bytes + sign * share.memory_bytes,
                was.cores_permille + sign * share.cores_permille,
            )
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

        `used`: how full the node is, 0 to 1, by the scarcer resource of each device. `best_*`: the
        most that is free on a healthy device. `largest_*`: the most that one has. 0 without any.
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
