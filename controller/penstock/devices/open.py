"""Which devices a command is about: a simulated machine when asked for, else the real ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.devices.backend import DeviceSource


def open_machine(machine: Path, spec: str | None = None, place: str = "") -> DeviceSource:
    """The simulated machine at `machine`, made after `spec` ("h200,2") when there is none.

    `place` makes the UUIDs of its devices differ from those of machines elsewhere.
    """
    from penstock.devices.backends.simulated import SimulatedDevices
    from penstock_shim import simulator

    if spec is not None:
        simulator.create_machine(machine, spec, place).close()
    return SimulatedDevices(machine)


def open_devices(machine: Path | None = None) -> DeviceSource:
    """The simulated `machine`, or that of `$PENSTOCK_SIM_MACHINE`, else the real devices.

    Inside `penstock simulate h200 -- bash`, commands thus find the same simulated machine. Raises
    `PenstockError` when there is neither driver nor machine.
    """
    if machine is None and os.environ.get("PENSTOCK_SIM_MACHINE"):
        machine = Path(os.environ["PENSTOCK_SIM_MACHINE"])
    if machine is not None:
        return open_machine(machine)
    from penstock.devices.backends.nvidia import NvidiaDevices

    return NvidiaDevices()
