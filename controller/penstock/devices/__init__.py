"""Devices of this machine, real or simulated, behind one interface."""

from penstock.devices.backend import (
    Device,
    DeviceBackend,
    DeviceLook,
    DeviceLostError,
    DeviceProcess,
    DriverLibraries,
    Observation,
    find_device,
    find_devices,
)
from penstock.devices.open import open_devices, open_machine

__all__ = [
    "Device",
    "DeviceBackend",
    "DeviceLook",
    "DeviceLostError",
    "DeviceProcess",
    "DriverLibraries",
    "Observation",
    "find_device",
    "find_devices",
    "open_devices",
    "open_machine",
]
