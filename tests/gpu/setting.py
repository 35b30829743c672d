"""The setting of a check: the arena, its time, and programs run natively and under the shim."""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.gpu import children, facts
from tests.gpu.rows import NotHereError

from penstock_shim import paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.gpu.arena import Arena
    from tests.gpu.children import Child
    from tests.gpu.preflight import Device

PROGRAMS = Path(__file__).parent / "programs"
IMPORT_S = 60  # PyTorch from a slow disk takes half of it
FEWEST_BYTES = 64 << 20
_numbers = itertools.count(1)


class Setting:
    """Handed to every check of a run."""

    def __init__(
        self, arena: Arena, pythons: facts.Pythons, device: Device, *, small: bool = False
    ) -> None:
        """`small`: as little as still shows that everything works, for the suite's own tests."""
        self.device = device
        self._problems: dict[str, str] = {}  # module → why it cannot be imported
        self.arena = arena
        self.pythons = pythons
        self.small = small
        self.deadline = time.monotonic() + 3600

    def left_s(self, most: float = 3600) -> float:
        """Seconds that the check has left, at most `most`."""
        return max(0.05, min(most, self.deadline - time.monotonic()))

    def few(self, much: int, little: int) -> int:
        """A number of rounds: `little` in a small run."""
        return little if self.small else much

    def memory_bytes(self, most: int) -> int:
        """Device memory for a check: `most`, or what half of the free memory holds of 64 MiB."""
        return int(min(most, max(FEWEST_BYTES, self.device.free_bytes // 2 & -FEWEST_BYTES)))

    def python_with(self, module: str) -> str:
        """An interpreter that has `module`.

        Raises:
            NotHereError: none on this machine has it.
        """
        python = self.pythons.of(module)
        if python is None:
            raise NotHereError(f"{module} is not installed in any Python here")
        return python

    def import_problem(self, module: str) -> str:
        """Why `module` cannot be imported without the shim; "": it can. Asked once a run.

        Raises:
            HungError: that was not known when the check's time was over.
        """
        if module not in self._problems:
            words = [self.python_with(module), "-c", f"import {module}; print('\\n{{}}')"]
            whole = self.left_s() > IMPORT_S
            try:
                self.native(words, timeout_s=IMPORT_S)
                self._problems[module] = ""
            except children.FailedError as error:
                self._problems[module] = str(error)
            except children.HungError as error:
                if not whole:
                    raise
                self._problems[module] = str(error)
        return self._problems[module]

    def script(self, module: str, name: str, *words: object) -> list[str]:
        """The command line of a program below `programs` that needs `module`."""
        return [self.python_with(module), str(PROGRAMS / name), *map(str, words)]

    @staticmethod
    def own_script(name: str, *words: object) -> list[str]:
        """The same for one that needs nothing but Python and the driver."""
        return [sys.executable, str(PROGRAMS / name), *map(str, words)]

    @staticmethod
    def workload(name: str, *words: object) -> list[str]:
        """The command line of one of Penstock's own programs."""
        return [str(paths.workload_path(f"penstock-{name}")), *map(str, words)]

    @staticmethod
    def tool(name: str) -> str:
        """Where a CUDA tool is. Raises `NotHereError`."""
        path = facts.tool_path(name)
        if path is None:
            raise NotHereError(f"{name} is not on this machine")
        return path

    def native(self, argv: Sequence[str], timeout_s: float = 600, **variables: str) -> Any:
        """The result (JSON) of a program without the shim.

        Raises:
            FailedError, HungError: it failed, or took longer than `timeout_s` or the check may.
        """
        command = self.arena.native(argv, **variables)
        return children.run(command, self.left_s(timeout_s)).result()

    def shimmed(
        self,
        argv: Sequence[str],
        *,
        cores: float = 100,
        memory: str | None = None,
        timeout_s: float = 600,
        **variables: str,
    ) -> Any:
        """The same of a tenant of `penstock run`."""
        name = f"check-{next(_numbers)}"
        command = self.arena.shimmed(argv, name=name, cores=cores, memory=memory, **variables)
        return children.run(command, self.left_s(timeout_s)).result()

    def child(self, command: children.Command) -> Child:
        """A program that runs beside the check; a context manager."""
        return children.Child(command)
