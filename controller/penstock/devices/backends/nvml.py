"""NVML as it behaves on a living machine: devices fall off, drivers are unloaded and upgraded."""

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

# What is answered for a device that is not there, and by a library whose driver is not.
_GONE = {
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
}
_NOT_TOLD = {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION}
IS_SIMULATED = "penstock_sim_nvml"  # a symbol that the simulated library alone has


def is_lost(error: pynvml.NVMLError) -> bool:
    """Whether it says that a device, or all of them, do not answer."""
    return error.value in _GONE


def told(function: Callable[..., _Told], *arguments: Any) -> Figure[_Told]:  # noqa: ANN401
    """What NVML answers; N/A where it has no such figure.

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
    """Total and used memory: the question by which it shows whether a device answers.

    Raises:
        pynvml.NVMLError: it does not. Those on their way off the bus say "unknown error".
    """
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as error:
        if error.value not in _NOT_TOLD:
            raise
        return NotAvailable(f"nvmlDeviceGetMemoryInfo: {error}")


def is_simulated() -> bool:
    """Whether the library that programs find here is the simulated one. Loads it, opens nothing."""
    library = pynvml.nvmlLib
    if library is None:
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return False
    return hasattr(library, IS_SIMULATED)


def reopen() -> None:
    """Begins anew, with the library that is there now.

    A library that stays loaded over a driver's upgrade refuses ever after ("version mismatch").

    Raises:
        pynvml.NVMLError: there is no driver, or no library.
    """
    unload()
    pynvml.nvmlInit()


def unload() -> None:
    """Closes what the library has open and unloads it, for which pynvml has no call."""
    import _ctypes

    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()
    with pynvml.libLoadLock:
        library, pynvml.nvmlLib = pynvml.nvmlLib, None
        pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001
    if library is not None:
        _ctypes.dlclose(library._handle)  # noqa: SLF001


class XidEvents:
    """XID errors as the driver reports them, of the devices registered."""

    def __init__(self) -> None:
        self._set: Any = None
        self._uuids: dict[int, str] = {}  # by the handle's address

    def register(self, handles: dict[str, Any]) -> None:
        """Listens to these devices, by UUID; to none where the driver has no events."""
        self.close()
        with contextlib.suppress(pynvml.NVMLError):
            self._set = pynvml.nvmlEventSetCreate()
            for uuid, handle in handles.items():
                # One that is lost, or a part of another: that one's events are told of it.
                with contextlib.suppress(pynvml.NVMLError):
                    pynvml.nvmlDeviceRegisterEvents(
                        handle, pynvml.nvmlEventTypeXidCriticalError, self._set
                    )
                    self._uuids[_address(handle)] = uuid

    def read(self) -> dict[str, list[int]]:
        """What came since the last call, by UUID. Waits for nothing."""
        found: dict[str, list[int]] = {}
        for _ in range(64 if self._set is not None else 0):  # a storm must not hold the round
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, 0)
            except pynvml.NVMLError:
                break  # no more (a timeout), or a device is lost
            uuid = self._uuids.get(_address(event.device))
            if uuid is not None and event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                found.setdefault(uuid, []).append(int(event.eventData))
        return found

    def close(self) -> None:
        """Listens no more."""
        if self._set is not None:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(self._set)
        self._set = None
        self._uuids = {}


def _address(handle: Any) -> int:  # noqa: ANN401 - a ctypes pointer
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
