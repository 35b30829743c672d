"""Checks before a run: whether there is a driver that works, and whether its device is free.

A GPU that does not answer is an error: a user of such a machine does not want nine minutes on the
simulated GPU instead.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.gpu import children
from tests.gpu.children import Command, FailedError, HungError
from tests.gpu.rows import NotHereError

from penstock.devices import open_devices
from penstock.devices.backends.nvml import is_simulated
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.gpu.setting import Setting
    from typing_extensions import Self

FIRST_CALL_S = 60.0  # a driver that nobody uses initialises its devices first
NODES = ("/dev/nvidia[0-9]*", "/proc/driver/nvidia/gpus/*", "/dev/nvgpu*")
INSTEAD = "--simulate h200 (GPU_CHECK_SIMULATE=h200) runs everything on the simulated GPU"
EXCLUSIVE = 3  # CU_COMPUTEMODE_EXCLUSIVE_PROCESS
MODES = {0: "default", 2: "prohibited", EXCLUSIVE: "exclusive process"}
LOCK = "penstock-gpu-check.lock"


@dataclass(frozen=True)
class Device:
    """The driver's answers about device 0 to a program without the shim."""

    total_bytes: int
    free_bytes: int  # with a context of one's own
    compute_mode: int

    def facts(self) -> dict[str, str]:
        """For the report's head."""
        used = self.total_bytes - self.free_bytes
        return {
            "compute_mode": MODES.get(self.compute_mode, str(self.compute_mode)),
            "memory_in_use": f"{used >> 20} MiB of {self.total_bytes >> 20}, a context included",
        }


def real_device() -> str | None:
    """None: a real device is here. Else why none is, in words.

    Raises:
        PenstockError: there is one, or a driver, and it does not answer.
    """
    if os.environ.pop("PENSTOCK_SIM_MACHINE", None) is not None:
        return "this shell runs on a simulated machine"
    if is_simulated():
        return "the NVML that programs find here is the simulated one"
    try:
        open_devices()
    except PenstockError as error:
        signs = [path for pattern in NODES for path in sorted(Path("/").glob(pattern[1:]))]
        names = [str(path) for path in signs] + ["libcuda.so.1"] * _loads("libcuda.so.1")
        if not names:
            return f"{error.what}: {error.why}"
        raise PenstockError(
            f"{', '.join(names)} is here, and NVML lists no device to use: {error.what}",
            error.why,
            f"nvidia-smi says more; MIG without instances lists none; {INSTEAD}",
        ) from error
    return None


def _loads(library: str) -> bool:
    """Whether a program finds the driver; a separate process tries, since it may crash."""
    words = [sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", library]
    try:
        done = children.run(Command(words, dict(os.environ)), FIRST_CALL_S)
    except HungError:
        return True
    return done.code == 0 or done.code < 0


def look_at(command: Callable[[str], Command]) -> Device:
    """Device 0. `command`: starts a probe of that name without the shim.

    Raises:
        PenstockError: programs cannot use it, though NVML lists it.
    """
    try:
        told = children.run(command("device"), FIRST_CALL_S).result()
    except (FailedError, HungError, NotHereError) as error:
        raise PenstockError(
            "NVML lists a device, and a CUDA program without the shim cannot use it",
            str(error),
            f"nvidia-smi says more (compute mode prohibited, no memory left, a driver exchanged "
            f"without a reboot); {INSTEAD}",
        ) from error
    return Device(**told)


def needs_sharing(setting: Setting) -> None:
    """For checks that have several processes on the device. Raises `NotHereError`."""
    if setting.device.compute_mode == EXCLUSIVE:
        raise NotHereError(
            "the device takes one process at a time (compute mode exclusive process; "
            "nvidia-smi -c DEFAULT changes it)"
        )


class OnlyOne:
    """Held by the run that measures on a real device: two would measure each other."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder`: that of temporary files."""
        self._path = (folder or Path(tempfile.gettempdir())) / LOCK
        self._file = -1

    def __enter__(self) -> Self:
        """Raises PenstockError: another run is at work."""
        try:
            self._file = self._opened()
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._file, 20, 0).decode(errors="replace").strip()
            os.close(self._file)
            raise PenstockError(
                f"another gpu-check measures on this machine (pid {holder or 'not told'})",
                "two would measure each other",
                "wait for its end",
            ) from None
        except OSError as error:
            raise PenstockError(f"cannot lock {self._path}", str(error)) from error
        with contextlib.suppress(OSError):  # another user's file, opened to be read
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, str(os.getpid()).encode(), 0)
        return self

    def _opened(self) -> int:
        always = os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | always, 0o644)
        except PermissionError:
            return os.open(self._path, os.O_RDONLY | always)

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
