"""NVML access that survives lost devices, and unloading or upgrades of the driver."""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING, Any, TypeVar

import pynvml

from penstock.devices.inventory import NotAvailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.devices.inventory import Figure

_Told = TypeVar("_Told")

# Errors returned for a lost device, and by a library whose driver is gone.
_GONE = {
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
}
_NOT_TOLD = {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION}
IS_SIMULATED = "penstock_sim_nvml"  # a symbol that only the simulated library has


def is_lost(error: pynvml.NVMLError) -> bool:
    """Whether the error means that a device, or the driver, is gone."""
    return error.value in _GONE


def told(function: Callable[..., _Told], *arguments: Any) -> Figure[_Told]:  # noqa: ANN401
    """The result of an NVML call, or `NotAvailable` if NVML does not have the value.

    Raises:
        pynvml.NVMLError: the device or its driver is gone.
    """
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if is_lost(error):
            raise
        name = getattr(function, "__name__", "NVML")
        return NotAvailable(f"{name}: {error}")


def memory_of(handle: Any) -> Figure[Any]:  # noqa: ANN401
    """Total and used memory. This call shows whether a device responds.

    Raises:
        pynvml.NVMLError: the device does not respond ("unknown error" if it fell off the bus).
    """
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as error:
        if error.value not in _NOT_TOLD:
            raise
        return NotAvailable(f"nvmlDeviceGetMemoryInfo: {error}")


def is_simulated() -> bool:
    """Whether programs find the simulated NVML here. Loads the library without initialising it."""
    library = pynvml.nvmlLib
    if library is None:
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return False
    return hasattr(library, IS_SIMULATED)


def reopen() -> None:
    """Reopens NVML with the library that is installed now.

    A library that stays loaded across a driver upgrade fails afterwards ("version mismatch").

    Raises:
        pynvml.NVMLError: there is no driver, or no library.
    """
    unload()
    pynvml.nvmlInit()


def unload() -> None:
    """Shuts NVML down and unloads its library; pynvml has no function for unloading."""
    import _ctypes

    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()
    with pynvml.libLoadLock:
        library, pynvml.nvmlLib = pynvml.nvmlLib, None
        pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001
    if library is not None:
        _ctypes.dlclose(library._handle)  # noqa: SLF001


class XidEvents:
    """XID errors that the driver reports for registered devices."""

    def __init__(self) -> None:
        self._set: Any = None
        self._uuids: dict[int, str] = {}  # by the handle's address

    def register(self, handles: dict[str, Any]) -> None:
        """Listens to the devices `handles`, by UUID; does nothing if the driver has no events."""
        self.close()
        with contextlib.suppress(pynvml.NVMLError):
            self._set = pynvml.nvmlEventSetCreate()
            for uuid, handle in handles.items():
                # Registration fails for a lost device, and for a partition, because the whole
                # device gets its events.
                with contextlib.suppress(pynvml.NVMLError):
                    pynvml.nvmlDeviceRegisterEvents(
                        handle, pynvml.nvmlEventTypeXidCriticalError, self._set
                    )
                    self._uuids[_address(handle)] = uuid

    def read(self) -> dict[str, list[int]]:
        """XID errors since the last call, by UUID. Never waits."""
        found: dict[str, list[int]] = {}
        # The number is limited so that a storm of errors does not block the loop.
        for _ in range(64 if self._set is not None else 0):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, 0)
            except pynvml.NVMLError:
                break  # no more events (a timeout), or a device is lost
            uuid = self._uuids.get(_address(event.device))
            if uuid is not None and event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                found.setdefault(uuid, []).append(int(event.eventData))
        return found

    def close(self) -> None:
        """Stops listening."""
        if self._set is not None:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(self._set)
        self._set = None
        self._uuids = {}


def _address(handle: Any) -> int:  # noqa: ANN401 - a ctypes pointer
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
