"""A Pod's request for device shares, by container."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.model import QuantityError, cores_from_tflops
from penstock.model.share import NOTHING, Share

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.scheduling.placement.device_state import Device, Placement

# An app container runs alongside all others, a sidecar starts before them and keeps running, and an
# init container ends before the next container starts.
Role = Literal["main", "sidecar", "init"]


@dataclass(frozen=True)
class Ask:
    """A container's request on each of `count` devices. An unset quantity means all of it."""

    container: str
    role: Role = "main"
    count: int = 1
    memory_bytes: int | None = None
    cores_permille: int | None = None
    tflops: int | None = None  # instead of cores

    def share(self, device: Device) -> Share | None:
        """The share of `device`; None if its TFLOPS are not known or less than requested."""
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
    """A Pod's request: `asks` in the order in which its containers start."""

    asks: tuple[Ask, ...]
    model: str = ""  # of the devices; empty for any model

    @property
    def together(self) -> list[Ask]:
        """Requests of containers that run concurrently, the largest (hardest to place) first."""
        both = [ask for ask in self.asks if ask.role != "init"]
        return sorted(both, key=_size, reverse=True)

    @property
    def inits(self) -> list[Ask]:
        """Requests of init containers, each of which runs with only the sidecars before it."""
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
    """A Pod's share of each device: the most it uses at any moment, by the rules of Kubernetes.

    Args:
        placement: The shares of its containers.
        roles: Its containers in start order. A container that is placed but not listed here counts
            as running all the time.
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
    return {uuid: one.get(uuid, NOTHING) + other.get(uuid, NOTHING) for uuid in {**one, **other}}


def _at_least(one: Mapping[str, Share], other: Mapping[str, Share]) -> dict[str, Share]:
    return {
        uuid: one.get(uuid, NOTHING).at_least(other.get(uuid, NOTHING)) for uuid in {**one, **other}
    }
