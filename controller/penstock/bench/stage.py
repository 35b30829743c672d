"""Stage, the test bed of benchmarks: a simulated machine, tenants, and programs that keep it busy.

Tenants get real pages and the real shim but no supervisor, so only the benchmark changes their
limits. Their usage is read from the device's own record.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.bench.scratch import scratch_folder
from penstock_shim import paths, simulator
from penstock_shim.pages import DeviceLimit, Limits, Mode, QuotaWriter, UsagePage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Self

LAUNCHER = "penstock-launcher"
KERNEL_RULES = "*spin=param0,meet=until0,decide=sets0,relay=launches0"
MEMORY_BYTES = 100 << 30
_OF_TENANT = ("suspended", "released", "released_ns", "mode")


class StageError(RuntimeError):
    """A program on the stage failed; the message includes the program's output."""


@dataclass(frozen=True)
class Sample:
    """The device's busy time for each tenant, exact at one moment."""

    at_ns: int
    busy_ns: dict[str, int]


@dataclass(frozen=True)
class Window:
    """A tenant's share of the device over a time interval."""

    begin_ns: int
    end_ns: int
    percent: float


class StageTenant:
    """A tenant on the stage."""

    def __init__(self, name: str, directory: Path, limits: Limits, driver: str) -> None:
        self.name = name
        self.directory = directory
        self._writer = QuotaWriter.create(
            directory / "quota", limits, tenant=name, driver_path=driver
        )
        self.usage = UsagePage.create(directory / "usage")

    def change(self, **fields: Any) -> int:  # noqa: ANN401 - fields of DeviceLimit
        """Change limits while programs run; returns CLOCK_MONOTONIC of the change.

        `suspended`, `released`, `released_ns` and `mode` apply to the tenant, all other fields to
        its first device.
        """

        def edit(limits: Limits) -> Limits:
            whole = {key: fields.pop(key) for key in _OF_TENANT if key in fields}
            device = replace(limits.devices[0], **fields)
            return replace(limits, devices=(device, *limits.devices[1:]), **whole)

        self._writer.change(edit)
        return time.monotonic_ns()

    def swap_devices(self) -> None:
        """Exchange the first two devices, after the driver moved the tenant between them."""

        def edit(limits: Limits) -> Limits:
            first, second, *rest = limits.devices
            return replace(limits, devices=(second, first, *rest))

        self._writer.change(edit)

    def close(self) -> None:
        """Close the pages."""
        self._writer.close()
        self.usage.close()


class Stage:
    """A simulated machine and its tenants. Use it as a context manager."""

    def __init__(self, profile: str = "h200") -> None:
        """`profile` names a simulated device, or several devices like "h200,8"."""
        self._profile = profile
        self._stack = contextlib.ExitStack()
        self._tenants: dict[str, StageTenant] = {}
        self._programs: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        self.directory = self._stack.enter_context(scratch_folder("stage"))
        self.machine = self._stack.enter_context(
            simulator.create_machine(self.directory / "machine", self._profile)
        )
        self._stack.callback(self._clear)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _clear(self) -> None:
        for program in self._programs:
            program.kill()
        for program in self._programs:
            program.communicate()
        for tenant in self._tenants.values():
            tenant.close()

    def tenant(
        self,
        name: str,
        cores: float,
        *,
        sharers: int = 1,
        mode: Mode = "strict",
        allowance: float = 0,
        memory_bytes: int = MEMORY_BYTES,
    ) -> StageTenant:
        """A new tenant with `cores` percent of each device of the machine.

        `sharers` is the number of tenants with a grant, including this tenant. `allowance` is the
        percentage that an elastic tenant may use right now (default: its cores).
        """
        permille = round(cores * 10)
        limits = Limits(
            devices=tuple(
                DeviceLimit(
                    uuid=device.uuid,
                    memory_bytes=memory_bytes,
                    cores_permille=permille,
                    allowance_permille=max(permille, round(allowance * 10)),
                    sharers=sharers,
                )
                for device in self.machine.devices()
            ),
            mode=mode,
        )
        directory = self.directory / "tenants" / name
        directory.mkdir(parents=True, mode=0o700)
        driver = str(paths.sim_dir() / "libcuda.so.1")
        self._tenants[name] = StageTenant(name, directory, limits, driver)
        return self._tenants[name]

    def start(
        self,
        tenant: StageTenant | None,
        arguments: Sequence[str],
        *,
        program: str | None = None,
        tag: str = "bare",
    ) -> subprocess.Popen[str]:
        """Start a program under `tenant`'s shim; if None, without a shim and recorded as `tag`."""
        command = [program or str(paths.workload_path(LAUNCHER)), *arguments]
        child = subprocess.Popen(
            command,
            env=self.environment(tenant, tag),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._programs.append(child)
        return child

    def environment(self, tenant: StageTenant | None, tag: str = "bare") -> dict[str, str]:
        """Environment of a program under `tenant`'s shim, or without a shim if `tenant` is None."""
        name = tenant.name if tenant else tag
        environment = {
            **os.environ,
            **simulator.environment(self.directory / "machine", name),
            "PENSTOCK_SIM_KERNELS": KERNEL_RULES,
        }
        if tenant:
            environment["PENSTOCK_TENANT_DIR"] = str(tenant.directory)
            environment["LD_PRELOAD"] = f"{paths.so_path()}:{paths.nvml_so_path()}"
        return environment

    def wait_until_busy(self, names: Sequence[str], seconds: float = 10) -> None:
        """Wait until every tenant in `names` has used the device.

        Raises:
            StageError: a tenant did not use it within `seconds`, or a program ended before.
        """
        give_up = time.monotonic() + seconds
        while not all(self.sample().busy_ns.get(name) for name in names):
            self.check_programs()
            if time.monotonic() > give_up:
                raise StageError(f"not all of {', '.join(names)} used the device in {seconds} s")
            time.sleep(0.01)

    def sample(self, device: int = 0) -> Sample:
        """Busy time so far of the device with index `device`, by tenant."""
        busy: dict[str, int] = {}
        at_ns = time.monotonic_ns()
        for record in self.machine.record(device):
            busy[record.tag] = busy.get(record.tag, 0) + record.busy_ns
            at_ns = record.at_ns
        return Sample(at_ns, busy)

    def watch(self, seconds: float, step_s: float = 0.05) -> list[Sample]:
        """Samples over the next `seconds`, one every `step_s`.

        Raises:
            StageError: a program failed meanwhile.
        """
        samples = [self.sample()]
        end_ns = samples[0].at_ns + round(seconds * 1e9)
        while samples[-1].at_ns < end_ns:
            time.sleep(step_s)
            samples.append(self.sample())
        self.check_programs()
        return samples

    def kill(self, program: subprocess.Popen[str]) -> None:
        """End a program by SIGKILL."""
        self._programs.remove(program)
        program.kill()
        program.communicate()

    @staticmethod
    def cpu_seconds(program: subprocess.Popen[str]) -> float:
        """Processor time that a running program has used, in seconds."""
        fields = Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def check_programs(self) -> None:
        """Raises `StageError` if a program has failed."""
        for program in self._programs:
            if program.poll():
                _, errors = program.communicate()
                raise StageError(f"{program.args!r} ended with {program.returncode}: {errors}")

    def finish(self, program: subprocess.Popen[str]) -> dict[str, Any]:
        """Wait until a launcher ends, and return its report.

        Raises:
            StageError: the launcher failed.
        """
        output, errors = program.communicate()
        self._programs.remove(program)
        if program.returncode:
            raise StageError(f"{program.args!r} ended with {program.returncode}: {errors}")
        report: dict[str, Any] = json.loads(output)
        return report


def windows(samples: Sequence[Sample], name: str, length_s: float = 1.0) -> Iterator[Window]:
    """The tenant's share over every interval of `length_s` that starts and ends at a sample."""
    length_ns = round(length_s * 1e9)
    last = 0
    for first, begin in enumerate(samples):
        last = max(last, first)
        while last < len(samples) and samples[last].at_ns - begin.at_ns < length_ns:
            last += 1
        if last == len(samples):
            return
        end = samples[last]
        used = end.busy_ns.get(name, 0) - begin.busy_ns.get(name, 0)
        yield Window(begin.at_ns, end.at_ns, 100 * used / (end.at_ns - begin.at_ns))
