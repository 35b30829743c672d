"""Benchmark of an agent with many tenants and real processes: its cost and response times."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.bench.scratch import scratch_folder
from penstock.bench.stage import StageError
from penstock.model import PenstockError
from penstock.node.admission.admit import Request
from penstock.node.rpc import AgentClient
from penstock.node.tenants.environment import program_environment
from penstock_shim import paths

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PROCESS_BYTES = 560 << 20  # of one process with its context
PODMAN = ("podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs")
# The limits are below podman's defaults, because a root user may lack the right to raise them.
RUN = (*PODMAN, "run", "--rm", "-i", "--network", "host", "--ulimit", "nofile=1024:1024",
       "--ulimit", "nproc=8000:8000")  # fmt: skip
ROOT = ("--rootfs", "/:O")
WORK = ("--hold", "--every-ms", "1000")  # each process makes one memset a second
SEVERAL = (
    f'exec 3<&0; for _ in $(seq 2 $1); do "$0" {" ".join(WORK)} <&3 & done; '
    f'exec "$0" {" ".join(WORK)}'
)
GRANTS = 100  # timed under load; each grant is revoked before the next
GRANT_BYTES, GRANT_PERMILLE = 64 << 20, 10
SETTLE_S = 5.0  # until reconcile iterations with new tenants are steady
PAUSE_EVERY, PAUSE_S = 4, 0.01  # between grants, as if clients came one by one


@dataclass(frozen=True)
class NodeRow:
    """Result for an agent under one load."""

    tenants: int
    processes: int  # with the shim, a context and memory; each works once a second
    grants: int  # timed while these processes were there
    grant_median_ms: float
    grant_p99_ms: float
    load: float  # the machine's load average when the grants were timed
    cpu_percent: float  # of one core, used by the idle agent
    slowest_round_ms: float
    restart_s: float  # from the start of a new agent after kill -9 to its first response


def run(
    *,
    tenants: int = 500,
    processes: int = 2000,
    containers: int = 0,
    seconds: float = 10,
    progress: Callable[[int, int], None] | None = None,
) -> list[NodeRow]:
    """Measures an agent with `tenants` without processes, then with `processes` spread over them.

    The first row times the grants of these tenants. The second row times the grants of more
    tenants, one at a time, while all the processes work.

    `containers` is how many of these tenants are podman containers, each with all its processes, on
    this machine's own root file system. Containers need root.

    Raises:
        StageError: the agent, a program or a container failed.
    """
    if containers > tenants:
        raise StageError("there are more containers than tenants")
    with scratch_folder("node", in_memory=True) as folder, contextlib.ExitStack() as stack:
        node = _Node(folder, offers=containers > 0)
        stack.callback(node.close)
        node.start()
        each = max(1, -(-processes // tenants))
        variables, took_ms = _grant(node, tenants - containers, each * PROCESS_BYTES)
        devices = [node.offer(f"c{n}", each * PROCESS_BYTES) for n in range(containers)]
        rows = [_row(node, tenants, 0, took_ms, seconds)]
        if progress:
            progress(1, 2)
        if processes:
            node.contain(devices, each)
            node.hold(variables, processes - containers * each)
            time.sleep(SETTLE_S)
            rows.append(_row(node, tenants, processes, _grants_at_work(node), seconds))
        if progress:
            progress(2, 2)
    return rows


class _Node:
    def __init__(self, folder: Path, *, offers: bool) -> None:
        """With `offers`, the default CDI and shim directories are used instead of `folder`."""
        self.socket = folder / "state" / "agent.sock"
        self._command = [
            *(sys.executable, "-m", "penstock", "agent", "--simulate=h200,8", "--metrics="),
            f"--state-dir={folder / 'state'}",
            f"--meter-dir={folder / 'meter'}",
            *([] if offers else [f"--cdi-dir={folder / 'cdi'}", f"--shim-dir={folder / 'shim'}"]),
        ]
        self._offered: list[str] = []
        self._agent: subprocess.Popen[str] | None = None
        self._held: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._agent = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        line = self._agent.stderr.readline() if self._agent.stderr else ""
        if '"started"' not in line:
            raise StageError(f"the agent did not start: {line}")

    def kill(self) -> None:
        if self._agent is not None:
            self._agent.kill()
            self._agent.communicate()

    def client(self) -> AgentClient:
        return AgentClient.local(self.socket)

    def cpu_seconds(self) -> float:
        if self._agent is None:
            return 0.0
        stat = Path(f"/proc/{self._agent.pid}/stat").read_text(encoding="ascii")
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def offer(self, name: str, memory_bytes: int) -> tuple[str, list[str]]:
        """Grants a tenant for a container; returns its name and podman's options for it."""
        request = Request(
            command=("bench",),
            memory_bytes=[memory_bytes],
            cores_permille=[10],
            name=name,
            lifetime="until-revoked",
            container=True,
        )
        with self.client() as agent:
            answer = agent.grant(request)
        self._offered.append(name)
        return name, [f"--device={one}" for one in answer.cdi_devices]

    def contain(self, devices: list[tuple[str, list[str]]], each: int) -> None:
        """Starts containers with `each` processes each on this machine's own root file system."""
        program = str(paths.workload_path("penstock-start"))
        words = ["sh", "-c", SEVERAL, program, str(each)]
        for name, options in devices:
            self._await([*RUN, f"--name=penstock-bench-{name}", *options, *ROOT, *words], each)

    def hold(self, variables: list[Mapping[str, str]], count: int) -> None:
        program = str(paths.workload_path("penstock-start"))
        for number in range(count):
            environment = program_environment(variables[number % len(variables)])
            self._await([program, *WORK], 1, environment)

    def _await(
        self, command: list[str], processes: int, environment: Mapping[str, str] | None = None
    ) -> None:
        """Starts `command`; returns when all of its processes have their contexts."""
        child = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._held.append(child)
        for _ in range(processes):
            line = child.stdout.readline() if child.stdout else b""
            if not line:
                raise StageError(f"{' '.join(command[:3])} … ended")
            json.loads(line)

    def close(self) -> None:
        for name in self._offered:  # these tenants would outlive the folder
            words = [*PODMAN, "rm", "-f", "-i", "-t", "0", f"penstock-bench-{name}"]
            subprocess.run(words, capture_output=True, check=False)
        for child in self._held:
            child.kill()
        for child in self._held:
            child.communicate()
        if self._offered:
            with contextlib.suppress(PenstockError), self.client() as agent:
                for name in self._offered:
                    agent.revoke(name, 0)
        self.kill()


def _grant(
    node: _Node, count: int, memory_bytes: int
) -> tuple[list[Mapping[str, str]], list[float]]:
    variables: list[Mapping[str, str]] = []
    took_ms = []
    with node.client() as agent:
        for number in range(count):
            request = Request(
                command=("bench",),
                memory_bytes=[memory_bytes],
                cores_permille=[10],
                name=f"t{number}",
                lifetime="until-revoked",
            )
            begun = time.perf_counter()
            answer = agent.grant(request)
            took_ms.append((time.perf_counter() - begun) * 1e3)
            variables.append(dict(answer.environment))
            if number % PAUSE_EVERY == 0:
                time.sleep(PAUSE_S)
    return variables, took_ms


def _grants_at_work(node: _Node) -> list[float]:
    """Durations of grants of further tenants under load, in ms."""
    took_ms = []
    with node.client() as agent:
        for number in range(GRANTS):
            request = Request(
                command=("bench",),
                memory_bytes=[GRANT_BYTES],
                cores_permille=[GRANT_PERMILLE],
                name=f"further{number}",
                lifetime="until-revoked",
            )
            begun = time.perf_counter()
            agent.grant(request)
            took_ms.append((time.perf_counter() - begun) * 1e3)
            agent.revoke(request.name or "", 0)
            time.sleep(PAUSE_S)
    return took_ms


def _row(
    node: _Node, tenants: int, processes: int, took_ms: list[float], seconds: float
) -> NodeRow:
    load = os.getloadavg()[0]
    time.sleep(SETTLE_S)
    before, begun = node.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    cpu = (node.cpu_seconds() - before) / (time.monotonic() - begun)
    with node.client() as agent:
        slowest_ms = agent.node().slowest_round.ToNanoseconds() / 1e6
    node.kill()
    begun = time.monotonic()
    node.start()
    with node.client() as agent:
        found = len(agent.tenants())
    restart_s = time.monotonic() - begun
    if found != tenants:
        raise StageError(f"the new agent took up {found} of {tenants} tenants")
    took_ms = sorted(took_ms)
    return NodeRow(
        tenants=tenants,
        processes=processes,
        grants=len(took_ms),
        grant_median_ms=round(statistics.median(took_ms), 1),
        grant_p99_ms=round(took_ms[int(len(took_ms) * 0.99)], 1),
        load=round(load, 1),
        cpu_percent=round(100 * cpu, 1),
        slowest_round_ms=round(slowest_ms, 1),
        restart_s=round(restart_s, 2),
    )
