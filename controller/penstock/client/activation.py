"""Activation: this process, and the children it starts, become an application of a pool.

The shim has the SONAME of the driver. If it is loaded before anything loads the driver, the loader
resolves that name to the shim from then on, as it does in a program that was started with it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.node.tenants.tenant_processes import TENANT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

_PRELOAD = "LD_PRELOAD"
_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
# Some programs ask for these names first. They are links to the driver, and the loader would not
# resolve them to the shim; the programs then ask for the names above.
_REFUSED_NAMES = {"libcuda.so", "libnvidia-ml.so"}
_active: Activation | None = None
_is_hooked = False


class Activation:
    """The variables and libraries of an application in this process."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        """Takes effect at once. Raises `PenstockError` if the process cannot become one."""
        check_can_activate()
        libraries = variables[_PRELOAD].split(":")
        own = os.environ.get(_PRELOAD, "").replace(":", " ").split()
        preload = ":".join([*libraries, *(one for one in own if one not in libraries)])
        self.directory = Path(variables[TENANT_VARIABLE])
        self._pid = os.getpid()
        self._former = {name: os.environ.get(name) for name in variables}
        os.environ.update({**variables, _PRELOAD: preload})
        try:
            for library in libraries:
                ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            self._restore()
            raise PenstockError(
                "cannot load the shim into this process", str(error),
                "start the program with penstock pool acquire … -- COMMAND instead",
            ) from error  # fmt: skip
        _hook_once()
        global _active  # noqa: PLW0603 - a process has one driver
        _active = self

    @property
    def is_used(self) -> bool:
        """Whether this process has called the driver, so that it belongs to the application."""
        return any(file.startswith(f"{self.directory}/") for file in _mapped_files())

    def end(self) -> None:
        """Later children do not belong to the application; and another one may be acquired.

        In a forked child, only the child's own environment changes.
        """
        self._restore()
        global _active  # noqa: PLW0603 - as above
        _active = None

    def _restore(self) -> None:
        for name, value in self._former.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def check_can_activate() -> None:
    """Raises `PenstockError` if this process cannot become an application of a pool."""
    if _active is not None or os.environ.get(TENANT_VARIABLE):
        raise PenstockError(
            "this process already runs under a quota",
            f"${TENANT_VARIABLE} is {os.environ.get(TENANT_VARIABLE)}, and quotas do not nest",
            "change it with card.resize(…), release it first, or acquire in another process",
        )
    if loaded := _loaded_driver():
        raise PenstockError(
            "this process cannot become an application of the pool any more",
            f"it has already loaded the driver ({loaded})",
            "call penstock.acquire first, before anything uses CUDA, or start the program with "
            "penstock pool acquire … -- COMMAND",
        )


def _loaded_driver() -> str | None:
    """The driver's library if this process has loaded it, but not through the shim."""
    for file in _mapped_files():
        name = file.rpartition("/")[2]
        if name.startswith("libcuda.so"):
            return file
    return None


def _mapped_files() -> set[str]:
    with Path("/proc/self/maps").open(encoding="utf-8", errors="surrogateescape") as maps:
        return {line.rstrip("\n").split(maxsplit=5)[5] for line in maps if line.count("/")}


def _hook_once() -> None:
    """Makes ctypes refuse the driver's other names while this process is an application."""
    global _is_hooked  # noqa: PLW0603 - an audit hook cannot be removed
    if not _is_hooked:
        sys.addaudithook(_refuse_other_names)
        _is_hooked = True


def _refuse_other_names(event: str, arguments: tuple[object, ...]) -> None:
    if event != "ctypes.dlopen" or _active is None or not isinstance(arguments[0], (str, bytes)):
        return
    name = os.fsdecode(arguments[0])
    folder, _, base = name.rpartition("/")
    is_driver = base in _REFUSED_NAMES or (folder and base in _LIBRARIES)
    if is_driver:
        raise OSError(
            f"{name}: this process runs as an application of a compute pool; load {_LIBRARIES[0]}"
        )
