"""Device report from NVML, for one device or MIG instance."""

from __future__ import annotations

import dataclasses
from typing import Any

import pynvml

from penstock.devices.backends.nvml import is_simulated, memory_of, told
from penstock.devices.inventory import DeviceReport, Figure, Kind, NotAvailable, blank, known

ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada",
    9: "Hopper", 10: "Blackwell",
}  # fmt: skip
MIG_BUSY = NotAvailable(
    "NVML reports no utilisation of MIG instances or of their processes",
    "computation that bypasses the shim is undetectable there; give whole instances to one tenant",
)
MIG_BOARD = NotAvailable("it is reported for the whole board only", "see the parent")
DIVIDED_BUSY = NotAvailable("NVML reports no utilisation of a device in MIG mode")
NOT_TOLD = NotAvailable("NVML does not report it")
_ACTIONS = {
    "NVML_GPU_RECOVERY_ACTION_GPU_RESET": "a GPU reset",
    "NVML_GPU_RECOVERY_ACTION_NODE_REBOOT": "a reboot of the node",
    "NVML_GPU_RECOVERY_ACTION_DRAIN_P2P": "draining peer-to-peer traffic",
    "NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET": "draining and a reset",
    "NVML_GPU_RECOVERY_ACTION_BUS_RESET": "a bus reset",
}
# The first driver releases that can suspend in place, and that can restore on another device.
CHECKPOINT_DRIVER, MOVE_DRIVER = 570, 580


def report_of(handle: Any, index: int, parent: Any = None) -> DeviceReport:  # noqa: ANN401
    """The report of a device or of a MIG instance of `parent`. The caller sets the health.

    Raises:
        pynvml.NVMLError: the device does not respond.
    """
    whole = handle if parent is None else parent
    memory = memory_of(handle)
    mig_mode = known(told(pynvml.nvmlDeviceGetMigMode, whole))
    divided = bool(mig_mode and mig_mode[0] == 1)
    pci = told(pynvml.nvmlDeviceGetPciInfo, whole)
    driver = told(pynvml.nvmlSystemGetDriverVersion)
    architecture = known(told(pynvml.nvmlDeviceGetArchitecture, whole))
    kind: Kind = "simulated" if is_simulated() else "nvidia"
    board = blank(
        kind,
        index,
        str(pynvml.nvmlDeviceGetUUID(handle)),
        str(pynvml.nvmlDeviceGetName(handle)),
        NOT_TOLD,
    )
    is_part = parent is not None
    return dataclasses.replace(
        board,
        bus_id=pci if isinstance(pci, NotAvailable) else _text(pci.busId).lower(),
        driver_version=driver if isinstance(driver, NotAvailable) else _text(driver),
        architecture=ARCHITECTURES.get(architecture or 0, NOT_TOLD),
        memory_total_bytes=memory if isinstance(memory, NotAvailable) else int(memory.total),
        memory_used_bytes=memory if isinstance(memory, NotAvailable) else int(memory.used),
        busy_permille=MIG_BUSY if is_part else DIVIDED_BUSY if divided else _busy(handle),
        temperature_celsius=MIG_BOARD if is_part else _temperature(handle),
        power_milliwatts=MIG_BOARD if is_part else told(pynvml.nvmlDeviceGetPowerUsage, handle),
        simulated=is_simulated(),
        parent=str(pynvml.nvmlDeviceGetUUID(parent)) if is_part else None,
        profile=profile_of(handle) if is_part else None,
        attributes=_attributes(handle, whole, driver, is_part=is_part, divided=divided),
    )


def mig_instances(handle: Any) -> list[Any]:  # noqa: ANN401
    """Handles of a device's MIG instances; empty if the device is not in MIG mode.

    Raises:
        pynvml.NVMLError: the device does not respond.
    """
    mode = known(told(pynvml.nvmlDeviceGetMigMode, handle))
    if not mode or mode[0] != 1:
        return []
    found = []
    for index in range(known(told(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)) or 0):
        try:
            found.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
        except pynvml.NVMLError_NotFound:  # noqa: PERF203 - at most seven
            continue  # no instance with this index
    return found


def profile_of(instance: Any) -> str | None:  # noqa: ANN401
    """The instance's profile, such as 1g.18gb, which NVML appends to the instance's name."""
    _, mark, profile = str(pynvml.nvmlDeviceGetName(instance)).rpartition("MIG ")
    return profile if mark else None


def recovery_action(handle: Any) -> str | None:  # noqa: ANN401
    """The recovery action that the driver requests; "" if none, None before r565 (not reported).

    Raises:
        pynvml.NVMLError: the device does not respond.
    """
    field_id = getattr(pynvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    if field_id is None:
        return None
    values = told(pynvml.nvmlDeviceGetFieldValues, handle, [field_id])
    if isinstance(values, NotAvailable) or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    number = int(values[0].value.uiVal)
    for name, words in _ACTIONS.items():
        if number == getattr(pynvml, name, None):
            return words
    return ""  # no action, or an action that concerns more than this device


def _busy(handle: Any) -> Figure[int]:  # noqa: ANN401
    rates = told(pynvml.nvmlDeviceGetUtilizationRates, handle)
    return rates if isinstance(rates, NotAvailable) else int(rates.gpu) * 10


def _temperature(handle: Any) -> Figure[int]:  # noqa: ANN401
    return told(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)


def _attributes(
    handle: Any,  # noqa: ANN401
    whole: Any,  # noqa: ANN401
    driver: Figure[Any],
    *,
    is_part: bool,
    divided: bool,
) -> dict[str, str]:
    found = {}
    cuda = known(told(pynvml.nvmlSystemGetCudaDriverVersion_v2))
    if cuda:
        found["cuda"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
    capability = known(told(pynvml.nvmlDeviceGetCudaComputeCapability, whole))
    if capability:
        found["compute_capability"] = f"{capability[0]}.{capability[1]}"
    if is_part:
        parts = known(told(pynvml.nvmlDeviceGetAttributes_v2, handle))
        if parts is not None:
            found["slices"] = str(parts.gpuInstanceSliceCount)
            found["multiprocessors"] = str(parts.multiprocessorCount)
    else:
        found["mig"] = "enabled" if divided else "disabled"
    major = "" if isinstance(driver, NotAvailable) else _text(driver).partition(".")[0]
    if major.isdigit():
        found["checkpoint"] = (
            "no"
            if is_part or divided or int(major) < CHECKPOINT_DRIVER
            else "in place"
            if int(major) < MOVE_DRIVER
            else "to an equal device"
        )
    return found


def _text(value: Any) -> str:  # noqa: ANN401 - bytes in some releases of pynvml
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
