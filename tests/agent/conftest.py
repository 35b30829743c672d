"""Fixtures: a real `penstock agent` on a simulated GPU, and its real client."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from tests.agent.support.programs import LAUNCHER, environment_for

from penstock.node.admission.admit import Request
from penstock.node.rpc import AgentClient
from penstock_shim.pages import read_usage
from penstock_shim.simulator import Machine

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30
STARTED_WITHIN_S = 30


def wait_until(condition, timeout_s=20.0):
    """Waits for a true value of `condition` and returns it; fails after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


class Node:
    """An agent, and the programs that run as its tenants."""

    def __init__(self, state: Path, *options: str) -> None:
        self.state = state
        self.options = options
        self.python = sys.executable
        self.socket = state / "agent.sock"
        self.process: subprocess.Popen[str] | None = None
        self.programs: list[subprocess.Popen[str]] = []

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "CUDA_"))}
        return {**kept, "PENSTOCK_STATE_DIR": str(self.state)}

    def start(self) -> None:
        """Starts the agent; returns when it accepts requests."""
        self.process = subprocess.Popen(
            [self.python, "-m", "penstock", *self.agent_command()],
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = self.process.stderr.readline()
        assert line, self.process.wait()
        self.started = json.loads(line)
        if self.started["event"] == "port is taken":  # what the agent says of it first
            self.started = json.loads(self.process.stderr.readline())
        assert self.started["event"] == "started", line

    def agent_command(self, *options: str) -> list[str]:
        """The `agent` command, with all its files in the test's folder."""
        places = {"meter-dir": "meter", "cdi-dir": "cdi", "shim-dir": "shim"}
        kept = [f"--{option}={self.state}-{folder}" for option, folder in places.items()]
        return ["agent", "--simulate=h200", "--metrics=127.0.0.1:0", *kept, *self.options, *options]

    def kill(self) -> None:
        """Kills the agent with SIGKILL, like the out-of-memory killer."""
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def stop(self) -> int:
        """Stops the agent with SIGTERM; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        self.process.stderr.close()
        return code

    def client(self) -> AgentClient:
        return AgentClient.local(self.socket)

    def __call__(self, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
        """Runs `penstock …` to its end, with captured output."""
        return subprocess.run(
            [self.python, "-m", "penstock", *arguments],
            env={**self.environment, **options.pop("env", {})},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **options,
        )

    def tenant(self, name: str, *, cores: int = 300, memory: int = 8 * GIB, **fields):
        """Creates a tenant; returns the agent's answer."""
        with self.client() as agent:
            return agent.grant(request(name, cores=cores, memory=memory, **fields))

    def launch(self, granted, *arguments: str) -> subprocess.Popen[str]:
        """Starts the launcher as that tenant's program."""
        return self.launch_in(environment_for(granted), LAUNCHER, *arguments)

    def launch_in(self, environment: dict[str, str], *command: str) -> subprocess.Popen[str]:
        """Starts a program in its own environment; it is ended with the node."""
        program = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.programs.append(program)
        return program

    def usage(self, name: str):
        return read_usage(self.state / "tenants" / name / "usage")

    def events(self, name: str) -> list[dict]:
        file = self.state / "tenants" / name / "events.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()]

    def machine(self) -> Machine:
        return Machine(self.state / "machines" / "h200x1")

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        for program in self.programs:
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(program.pid) == program.pid:  # its children have its pipes too
                    os.killpg(program.pid, signal.SIGKILL)
                program.kill()
            program.communicate()


def request(name: str, *, cores: int = 300, memory: int = 8 * GIB, **fields) -> Request:
    fields.setdefault("lifetime", "until-revoked")
    return Request(
        command=fields.pop("command", ("launcher",)),
        memory_bytes=[memory],
        cores_permille=[cores],
        name=name,
        **fields,
    )


@pytest.fixture
def make_node(tmp_path):
    nodes = []

    def make(*options: str, start: bool = True) -> Node:
        nodes.append(Node(tmp_path / f"state{len(nodes)}", *options))
        if start:
            nodes[-1].start()
        return nodes[-1]

    yield make
    for one in nodes:
        one.close()


@pytest.fixture
def node(make_node) -> Node:
    return make_node()
