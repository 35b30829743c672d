"""The devices that this node brings into its compute pool, as cards, and those left out.

A device that was chosen for the pool and whose rated TFLOPS are known belongs to the pool: nobody
else gets new shares of it. While others still have shares of it, it is left out; it joins by itself
once these have ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.devices import find_device, find_devices
from penstock.devices.rate_file import LEAST_TFLOPS, MOST_TFLOPS, rate_in
from penstock.devices.rates import rated_tflops
from penstock.model import PenstockError, listing
from penstock.node.agent.pool_orders import PoolCardState
from penstock.node.agent.pool_tenants import is_pools

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.devices import Device
    from penstock.devices.rate_file import RateTable
    from penstock.node.agent.device_task import DeviceTask
    from penstock.node.agent.node import Node
    from penstock.node.agent.tenant_registry import TenantRegistry

DEFAULT_PRECISION, HALF = "bf16", ("bf16", "fp16")


@dataclass(frozen=True)
class PoolOptions:
    """What the operator says: `penstock agent --pool-devices --pool-tflops --pool-precision`."""

    devices: Sequence[str] = ()  # indexes, UUIDs or unique starts of one; none: all
    tflops: Mapping[str, float] = field(default_factory=dict)  # by the same words
    precision: str = DEFAULT_PRECISION  # at which a block of the pool is 1 TFLOPS
    rates: RateTable = field(default_factory=dict)  # of models, before the ones that are known


@dataclass(eq=False)
class PoolDevices:
    """Chooses the devices of the pool, and describes them as cards."""

    node: Node
    registry: TenantRegistry
    health: DeviceTask
    options: PoolOptions

    def __post_init__(self) -> None:
        self._chosen: list[Device] = []
        self._tflops: dict[str, float] = {}

    def choose(self) -> frozenset[str]:
        """Reads the options once the devices are known; returns the UUIDs of the pool's devices.

        Raises:
            PenstockError: an option names no device, or a rating that no device has.
        """
        devices = self.node.devices
        self._chosen = find_devices(devices, self.options.devices) or list(devices)
        self._chosen.sort(key=lambda one: one.index)
        self._tflops = {one.uuid: tflops for one in devices if (tflops := self._rated(one))}
        for word, tflops in self.options.tflops.items():
            if not LEAST_TFLOPS <= tflops <= MOST_TFLOPS:
                raise PenstockError(
                    f"invalid rating {tflops:g} of device {word}",
                    f"a card of a pool has {LEAST_TFLOPS:g} to {MOST_TFLOPS:g} TFLOPS",
                    "give the dense TFLOPS of its data sheet: --pool-tflops 0=60",
                )
            self._tflops[find_device(devices, word).uuid] = tflops
        return frozenset(one.uuid for one in self._chosen if not self._unrated(one))

    def cards(self) -> tuple[PoolCardState, ...]:
        """All chosen devices as they are now."""
        shares = self._shares()
        return tuple(self._card(device, shares[device.uuid]) for device in self._chosen)

    def _shares(self) -> dict[str, tuple[list[str], bool]]:
        """Of each chosen device: the tenants that are not the pool's, and whether it has others."""
        found: dict[str, tuple[list[str], bool]] = {one.uuid: ([], False) for one in self._chosen}
        for grant in self.registry.grants():
            for share in grant.devices if grant.machine == self.node.machine else ():
                if share.uuid in found:
                    others, has_pools = found[share.uuid]
                    if is_pools(grant):
                        has_pools = True
                    else:
                        others.append(grant.tenant)
                    found[share.uuid] = (others, has_pools)
        return found

    def _card(self, device: Device, shares: tuple[list[str], bool]) -> PoolCardState:
        others, has_pools = shares
        health, left_out = self.health.health(device.uuid), self._unrated(device)
        if others and not left_out:
            left_out = (
                f"{listing(sorted(others))} has shares of it that are not the pool's; "
                "it joins the pool when these have ended"
            )
        if not left_out and health.state != "ok" and not has_pools:
            left_out = f"it is {health}"
        report = self.health.report_of(device.uuid)
        checkpoint = report.attributes.get("checkpoint", "") if report else ""
        return PoolCardState(
            uuid=device.uuid,
            index=device.index,
            model=device.name,
            tflops=self._tflops.get(device.uuid, 0.0),
            memory_bytes=device.memory_bytes,
            frees_memory=device.simulated or checkpoint not in {"", "no"},
            left_out=left_out,
        )

    def _rated(self, device: Device) -> float | None:
        """The rated TFLOPS of the device's model; a device's own figure is for half precision."""
        precision = self.options.precision
        found = rate_in(self.options.rates, device.name, precision)
        if found is None:
            found = rated_tflops(device.name, precision)
        return device.tflops if found is None and precision in HALF else found

    def health_of(self, uuid: str) -> str:
        """What is wrong with the device, empty if nothing is."""
        health = self.health.health(uuid)
        return "" if health.state == "ok" else f"its device {uuid} is {health}"

    def _unrated(self, device: Device) -> str:
        """Why the device has no blocks, empty if it has some."""
        tflops = self._tflops.get(device.uuid)
        if tflops is None:
            return (
                f"the rated {self.options.precision} TFLOPS of {device.name} are not known; "
                "start the agent with "
                f"--pool-tflops {device.uuid}=TFLOPS, or with --pool-rates"
            )
        if tflops < LEAST_TFLOPS:
            return f"it is rated at {tflops:g} TFLOPS, less than one block"
        return ""
