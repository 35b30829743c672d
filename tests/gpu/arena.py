"""Where programs run: the real device if there is one, else a simulated machine.

A program is started natively, as `penstock run` starts it, or in a tenant of pages alone, whose
limits a check changes while it runs.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.gpu.children import Command

from penstock.bench.stage import StageTenant
from penstock.devices import open_devices
from penstock.node.tenants.simulated_machines import simulated_machine
from penstock.node.tenants.state import State
from penstock_shim import paths
from penstock_shim.pages import DeviceLimit, Limits
from penstock_shim.simulator import Machine

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from typing_extensions import Self

    from penstock.devices import DeviceBackend

RULES = (  # how long the simulated device takes for kernels that it cannot run
    "penstock_traced=param0,penstock_spin=param0,penstock_sweep=300us,"
    "penstock_multiply=1500us,penstock_tiny=1us"
)
MEMORY_BYTES = 8 << 30
MOST_MIB = 32 << 10


class Arena:
    """One machine with its devices, a state directory, and ways to start programs there."""

    def __init__(self, folder: Path, simulate: str | None) -> None:
        """`simulate`: the profile of a simulated device; None: the real ones.

        Raises:
            PenstockError: there is no such device.
        """
        self.folder = folder
        self.simulate = simulate
        self.state = State.open(folder / "state")
        self._stack = contextlib.ExitStack()
        self._tenants = 0
        self.source: DeviceBackend = (
            simulated_machine(self.state, simulate) if simulate else open_devices()
        )
        self.device = self.source.devices()[0]
        self.machine: Machine | None = None
        self.variables: dict[str, str] = {}

    def __enter__(self) -> Self:
        if self.source.machine is not None:
            self.machine = self._stack.enter_context(Machine(self.source.machine))
            # A simulated machine that nobody is on is made anew by the next tenant. This holds it,
            # and ends with this process, however that ends.
            holder = subprocess.Popen(
                ["cat"], stdin=subprocess.PIPE, env=self.native([], "holder").environment
            )
            self._stack.callback(holder.wait)
            self._stack.callback(holder.stdin.close)  # type: ignore[union-attr]
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def fresh_number(self) -> int:
        """For the name of a tenant: a simulated device's record keeps those that have ended."""
        self._tenants += 1
        return self._tenants

    @property
    def simulated(self) -> bool:
        """Whether the device is a simulated one."""
        return self.simulate is not None

    def native(self, argv: Sequence[str], tag: str = "native", **variables: str) -> Command:
        """A program without shim; `tag` names it in a simulated device's record."""
        return Command(argv, {**self._base(), **self.source.environment(tag), **variables})

    def shimmed(
        self,
        argv: Sequence[str],
        *,
        name: str,
        cores: float = 100,
        memory: str | None = None,
        mode: str = "strict",
        **variables: str,
    ) -> Command:
        """The same as a user's tenant: under `penstock run`, with its supervisor.

        `memory`: None: 32 GiB, or half of a smaller device.
        """
        memory = memory or f"{min(MOST_MIB, self.device.memory_bytes >> 21)}Mi"
        words = [sys.executable, "-m", "penstock", "run", "--quiet", "--no-agent"]
        words += [f"--state-dir={self.state.directory}", f"--name={name}", f"--memory={memory}"]
        words += [f"--cores={cores:g}", f"--mode={mode}"]
        words += [f"--simulate={self.simulate}"] if self.simulate else ["--device=0"]
        return Command([*words, "--", *argv], {**self._base(), **variables})

    def tenant(
        self,
        cores: float,
        *,
        memory_bytes: int = MEMORY_BYTES,
        context_bytes: int = 0,
        name: str = "paged",
    ) -> StageTenant:
        """A tenant of pages alone on device 0, without a supervisor; the caller closes it.

        `context_bytes`: charged for each context.
        """
        limit = DeviceLimit(
            uuid=self.device.uuid,
            memory_bytes=memory_bytes,
            cores_permille=round(cores * 10),
            context_reserve_bytes=context_bytes,
        )
        unique = f"{name}-{self.fresh_number()}"
        directory = self.folder / "tenants" / unique
        directory.mkdir(parents=True, mode=0o700)
        driver = self.source.libraries().driver
        return StageTenant(unique, directory, Limits(devices=(limit,)), driver)

    def inside(self, tenant: StageTenant, argv: Sequence[str], **variables: str) -> Command:
        """A program in a tenant of pages."""
        return Command(
            argv,
            {
                **self._base(),
                **self.source.environment(tenant.name),
                "PENSTOCK_TENANT_DIR": str(tenant.directory),
                "LD_PRELOAD": f"{paths.so_path()}:{paths.nvml_so_path()}",
                **variables,
            },
        )

    def _base(self) -> dict[str, str]:
        cache = self.folder / "cache"  # compiled kernels: both arms find the same, nobody else's
        base = {
            **os.environ,
            "TRITON_CACHE_DIR": str(cache / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "CUPY_CACHE_DIR": str(cache / "cupy"),
            "CUDA_CACHE_PATH": str(cache / "cuda"),
            "NUMBA_CACHE_DIR": str(cache / "numba"),
            **self.variables,
        }
        base.pop("LD_PRELOAD", None)
        return {**base, "PENSTOCK_SIM_KERNELS": RULES} if self.simulated else base
