"""A simulated machine, tenants on it, and programs that run there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock_shim import pages, paths, simulator

PROGRAMS = Path(__file__).parent / "programs"


class Conversation:
    """A program that answers each line with a line."""

    def __init__(self, program, environment, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, PROGRAMS / program, *arguments],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self):
        return self.process.pid

    def hear(self):
        line = self.process.stdout.readline()
        assert line, f"the program ended: {self.process.wait()}"
        return line.strip()

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.hear()

    def end(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


class Nvml(Conversation):
    """pynvml in a process of its own."""

    def __init__(self, environment, initialise=True):
        super().__init__("nvml_shell.py", environment)
        if initialise:
            self("nvmlInit()")

    def answer(self, expression):
        return json.loads(self.ask(expression))

    def __call__(self, expression):
        answer = self.answer(expression)
        assert "value" in answer, f"{expression}: NVML error {answer['nvml']}"
        return answer["value"]

    def error(self, expression):
        answer = self.answer(expression)
        assert "nvml" in answer, f"{expression} answered {answer['value']}"
        return answer["nvml"]


class CudaProgram(Conversation):
    """A driver-API program: `alloc BYTES`, `run COUNT NS`, `queue COUNT NS`."""

    def __init__(self, environment, ordinal=0):
        super().__init__("cuda_client.py", environment, str(ordinal))
        assert self.hear() == "ready"

    def do(self, command):
        assert self.ask(command) == "done"


@dataclass
class Box:
    """A simulated machine and everything that was started on it."""

    folder: Path
    machine: simulator.Machine
    started: list

    @property
    def devices(self):
        return self.machine.devices()

    def environment(self, tag="", tenant=None):
        variables = simulator.environment(self.machine.path, tag)
        variables["PENSTOCK_SIM_KERNELS"] = "spin=param0"
        if tenant is not None:
            variables["PENSTOCK_TENANT_DIR"] = str(tenant)
            variables["LD_PRELOAD"] = f"{paths.so_path()}:{paths.nvml_so_path()}"
        return variables

    def tenant(self, name, *grants):
        """A tenant's directory; a grant is (device index, memory bytes)."""
        folder = self.folder / name
        folder.mkdir()
        limits = pages.Limits(
            devices=tuple(
                pages.DeviceLimit(uuid=self.devices[index].uuid, memory_bytes=memory_bytes)
                for index, memory_bytes in grants
            )
        )
        pages.QuotaWriter.create(
            folder / "quota",
            limits,
            tenant=name,
            driver_path=str(paths.sim_dir() / "libcuda.so.1"),
            nvml_path=str(paths.sim_dir() / "libnvidia-ml.so.1"),
        ).close()
        pages.UsagePage.create(folder / "usage").close()
        return folder

    def nvml(self, tenant=None, initialise=True, **variables):
        environment = {**self.environment(tenant=tenant), **variables}
        return self._keep(Nvml(environment, initialise))

    def program(self, tag="", tenant=None, ordinal=0):
        return self._keep(CudaProgram(self.environment(tag, tenant), ordinal))

    def let_samples_pass(self, count):
        """Keeps the last device at work until it took `count` more samples."""
        last = self.devices[-1]
        clock = self.program("clock", ordinal=last.index)
        clock.do(f"run 1 {count * last.sample_period_ns}")

    def tool(self, *command, tenant=None, **variables):
        """The output of a command-line tool of this Python environment."""
        done = subprocess.run(
            [Path(sys.executable).parent / command[0], *command[1:]],
            env={**os.environ, **self.environment(tenant=tenant), "COLUMNS": "200", **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _keep(self, conversation):
        self.started.append(conversation)
        return conversation


@pytest.fixture
def box(tmp_path, request):
    """Three H200, unless the test is parametrized (indirectly) with another machine."""
    spec = getattr(request, "param", "h200,3")
    with simulator.create_machine(tmp_path / "machine", spec) as machine:
        box = Box(tmp_path, machine, [])
        yield box
        for conversation in box.started:
            conversation.end()
