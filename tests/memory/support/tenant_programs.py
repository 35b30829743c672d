"""A tenant on a simulated GPU, made from the pages alone, and programs that run in it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock_shim import paths, simulator
from penstock_shim.pages import DeviceLimit, Limits, QuotaWriter, UsagePage, read_usage

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
MIB = 1 << 20
LONGEST_S = 120  # a program that hangs fails its test, and does not hang the run


@dataclass
class Tenant:
    """A tenant directory, its quota and the machine that its programs see."""

    folder: Path
    machine: Path
    quota: QuotaWriter

    def environment(self, **variables: str) -> dict[str, str]:
        return {
            **os.environ,
            **simulator.environment(self.machine, self.folder.name),
            "LD_PRELOAD": f"{paths.so_path()} {paths.nvml_so_path()}",
            "PENSTOCK_TENANT_DIR": str(self.folder),
            "PENSTOCK_LOG": str(self.folder / "log"),
            **variables,
        }

    def start(
        self, scenario: Callable[..., None], *arguments: object, **variables: str
    ) -> subprocess.Popen[str]:
        """Run a function of a module of tests as a program of its own."""
        module, name = scenario.__module__, scenario.__name__
        call = f"import {module} as own; own.{name}(*{[str(a) for a in arguments]!r})"
        program = subprocess.Popen(
            [sys.executable, "-c", call],
            cwd=ROOT,
            env=self.environment(**variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        watchdog = threading.Timer(LONGEST_S, program.kill)
        watchdog.daemon = True
        watchdog.start()
        return program

    def run(self, scenario: Callable[..., None], *arguments: object, **variables: str) -> str:
        """Runs the scenario to its end; its output. Fails with the program's traceback."""
        with self.start(scenario, *arguments, **variables) as program:
            out, err = program.communicate(timeout=60)
        assert program.returncode == 0, f"{err}\n{self.log()}"
        return out

    def run_beside_a_full_device(self, scenario: Callable[..., None]) -> None:
        """Runs it; between its two lines of output the driver has no memory."""
        with self.start(scenario) as program:
            assert program.stdout.readline() == "ready\n"
            with simulator.Machine(self.machine) as machine:
                machine.inject("out-of-memory")
                program.stdin.write("on\n")
                program.stdin.flush()
                line = program.stdout.readline()
                machine.lift()
            _, errors = program.communicate("on\n", timeout=60)
        assert line == "again\n", errors
        assert program.returncode == 0, errors

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    def charged(self, device: int = 0) -> int:
        """Bytes in the ledger, ended processes' charges not yet taken back."""
        return read_usage(self.folder / "usage").devices[device].total_bytes

    def peak(self, device: int = 0) -> int:
        return read_usage(self.folder / "usage").devices[device].peak_bytes

    def refusals(self, device: int = 0) -> int:
        return read_usage(self.folder / "usage").devices[device].refusals

    def reap(self) -> None:
        with UsagePage.open(self.folder / "usage") as usage:
            usage.reap(self.folder / "quota")

    def resize(self, memory_bytes: int, device: int = 0) -> None:
        def edit(limits: Limits) -> Limits:
            devices = list(limits.devices)
            devices[device] = replace(devices[device], memory_bytes=memory_bytes)
            return replace(limits, devices=tuple(devices))

        self.quota.change(edit)


def make_tenant(
    folder: Path,
    machine: Path,
    memory_bytes: int = 1024 * MIB,
    *,
    context_reserve_bytes: int = 0,
    granted: tuple[int, ...] = (0,),
    driver: Path | None = None,
    nvml: Path | None = None,
) -> Tenant:
    """A tenant with the same limits on each of the `granted` devices of the machine."""
    folder.mkdir()
    with simulator.Machine(machine) as opened:
        uuids = [device.uuid for device in opened.devices()]
    devices = tuple(
        DeviceLimit(
            uuid=uuids[index],
            memory_bytes=memory_bytes,
            context_reserve_bytes=context_reserve_bytes,
        )
        for index in granted
    )
    UsagePage.create(folder / "usage").close()
    quota = QuotaWriter.create(
        folder / "quota",
        Limits(devices=devices),
        tenant=folder.name,
        driver_path=str(driver or paths.sim_dir() / "libcuda.so.1"),
        nvml_path=str(nvml or paths.sim_dir() / "libnvidia-ml.so.1"),
    )
    return Tenant(folder, machine, quota)
