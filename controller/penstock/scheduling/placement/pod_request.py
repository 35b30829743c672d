"""What the containers of a Pod ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.model import QuantityError, cores_from_tflops
from penstock.scheduling.placement.device_state import NOTHING, Share

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.scheduling.placement.device_state import Device, Placement

# A container that runs beside all others, one that starts before them and stays, one that ends
# before the next one starts.
Role = Literal["main", "sidecar", "init"]


@dataclass(frozen=True)
class Ask:
    """What one container asks for, of each of `count` devices. What is not said is all of it."""

    container: str
    role: Role = "main"
    count: int = 1
    memory_bytes: int | None = None
    cores_permille: int | None = None
    tflops: int | None = None  # instead of cores

    def share(self, device: Device) -> Share | None:
        """How much of this device that is; None: nobody can say, or more TFLOPS than it has."""
        memory_bytes = device.memory_bytes if self.memory_bytes is None else self.memory_bytes
        if self.tflops is None:
            cores = device.cores_permille if self.cores_permille is None else self.cores_permille
            return Share(memory_bytes, cores)
        if device.tflops is None:
            return None
        try:
            return Share(memory_bytes, cores_from_tflops(self.tflops, device.tflops))
        except QuantityError:
            return None


@dataclass(frozen=True)
class Request:
    """What a Pod asks for: `asks` in the order in which its containers start."""

    asks: tuple[Ask, ...]
    model: str = ""  # of the devices; empty: any

    @property
    def together(self) -> list[Ask]:
        """Those that run at the same time, the largest first: they are the hardest to place."""
        both = [ask for ask in self.asks if ask.role != "init"]
        return sorted(both, key=_size, reverse=True)

    @property
    def inits(self) -> list[Ask]:
        """Those that run alone, beside the sidecars before them."""
        return [ask for ask in self.asks if ask.role == "init"]


def _size(ask: Ask) -> tuple[float, float, float]:
    most = float("inf")
    cores = ask.cores_permille if ask.tflops is None else ask.tflops
    return (
        ask.count,
        most if ask.memory_bytes is None else ask.memory_bytes,
        most if cores is None else cores,
    )


def totals(placement: Placement, roles: Iterable[tuple[str, Role]]) -> dict[str, Share]:
    """What a Pod holds of each device: the most at any moment, as Kubernetes reckons.

    Args:
        placement: The shares of its containers.
        roles: Its containers in the order in which they start. One that is placed but not named
            here counts as running all the time.
    """
    order = [(name, role) for name, role in roles if name in placement]
    named = {name for name, _ in order}
    order += [(name, "main") for name in placement if name not in named]
    running: dict[str, Share] = {}  # sidecars so far
    most: dict[str, Share] = {}
    for name, role in order:
        if role == "sidecar":
            running = _plus(running, placement[name])
        elif role == "init":
            most = _at_least(most, _plus(running, placement[name]))
    for name, role in order:
        if role == "main":
            running = _plus(running, placement[name])
    return _at_least(most, running)


def _plus(one: Mapping[str, Share], other: Mapping[str, Share]) -> dict[str, Share]:
    return {
        uuid: _sum(one.get(uuid, NOTHING), other.get(uuid, NOTHING)) for uuid in {**one, **other}
    }


def _at_least(one: Mapping[str, Share], other: Mapping[str, Share]) -> dict[str, Share]:
    return {
        uuid: _most(one.get(uuid, NOTHING), other.get(uuid, NOTHING)) for uuid in {**one, **other}
    }


def _sum(one: Share, other: Share) -> Share:
    return Share(one.memory_bytes + other.memory_bytes, one.cores_permille + other.cores_permille)


def _most(one: Share, other: Share) -> Share:
    return Share(
        max(one.memory_bytes, other.memory_bytes), max(one.cores_permille, other.cores_permille)
    )
