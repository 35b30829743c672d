"""The node that an agent serves: its name, its state directory and its devices."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.devices import Device, DeviceBackend
    from penstock.node.tenants.state import State


@dataclass
class Node:
    """The node's properties, shared by all parts of its agent."""

    name: str
    state: State
    source: DeviceBackend
    enforces: bool  # the agent runs as root, so that tenants cannot undo their quotas
    devices: Sequence[Device] = ()  # empty until the agent starts
    # UUIDs of the devices that belong to a compute pool, which alone grants shares of them.
    pool_devices: frozenset[str] = frozenset()
    is_in_pool: bool = False  # the agent carries out the orders of a compute pool
    started_at: float = field(default_factory=time.time)  # the agent's start, in Unix time

    @property
    def machine(self) -> str | None:
        """The file of the simulated machine, None if the devices are real."""
        return str(self.source.machine) if self.source.machine else None
