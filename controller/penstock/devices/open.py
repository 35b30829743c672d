"""Opening of devices for a command: a simulated machine if one is named, else the real devices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.devices.backend import DeviceBackend


def open_machine(machine: Path, spec: str | None = None, place: str = "") -> DeviceBackend:
    """The simulated machine at `machine`, created from `spec` ("h200,2") if it does not exist.

    Machines with different values of `place` have different device UUIDs.
    """
    from penstock.devices.backends.simulated import SimulatedDevices
    from penstock_shim import simulator

    if spec is not None:
        simulator.create_machine(machine, spec, place).close()
    return SimulatedDevices(machine)


def open_devices(machine: Path | None = None) -> DeviceBackend:
    """The simulated `machine`, or the one in `$PENSTOCK_SIM_MACHINE`, else the real devices.

    Because of the variable, commands in `penstock simulate h200 -- bash` find its machine.

    Raises:
        PenstockError: there is neither a driver nor a simulated machine.
    """
    if machine is None and os.environ.get("PENSTOCK_SIM_MACHINE"):
        machine = Path(os.environ["PENSTOCK_SIM_MACHINE"])
    if machine is not None:
        return open_machine(machine)
    from penstock.devices.backends.nvidia import NvidiaDevices

    return NvidiaDevices()
