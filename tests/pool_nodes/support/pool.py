"""A real manager and real agents, each in a network namespace of its own, with mutual TLS."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.pool_nodes.support import namespaces
from tests.support.named_processes import named

from penstock.bench.stage import KERNEL_RULES
from penstock.model import PenstockError
from penstock.node.agent.card_workers import CARD_VARIABLE
from penstock.node.rpc import AgentClient
from penstock.node.tenants.tenant_processes import TENANT_VARIABLE, environments, members_of
from penstock_shim import profiles
from penstock_shim.simulator import Machine

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "compute-pool.md"
MANAGER = "manager.example"  # as the how-to page names it
PORT, AGENT_PORT = 9472, 9471
UP_WITHIN_S = 60
MACHINES = {"node-1": "h200,2", "node-2": "h100,2", "node-3": "a100-80g,2", "node-4": "small,1"}
SMALL_MIB = 4096  # of device memory of node-4's card, which fits into any host's memory twice


def certificates(folder: Path) -> None:
    """The certificates of the how-to page, with one for each node."""
    page = PAGE.read_text(encoding="utf-8")
    script = next(t for t in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "-x509" in t)
    node = next(line for line in script.splitlines() if line.startswith("certificate node-1"))
    script = script.replace(node, "\n".join(node.replace("node-1", name) for name in MACHINES))
    folder.mkdir()
    subprocess.run(["sh", "-euc", script], cwd=folder, capture_output=True, check=True, timeout=60)


def clean_environment(**more: str) -> dict[str, str]:
    """This process's variables without Penstock's."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "CUDA_"))}
    return {**kept, **more}


@dataclass
class Daemon:
    """A process of Penstock's that tests kill and start again."""

    namespace: str
    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it; returns when it serves."""
        before = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                namespaces.within(self.namespace, *self.command),
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                stderr=log,
                stdout=log,
            )
        until = time.monotonic() + UP_WITHIN_S
        while '"started"' not in self.log.read_text()[before:]:
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            assert time.monotonic() < until, f"{self.namespace} did not start"
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL, as from the out-of-memory killer."""
        self.process.kill()
        self.process.wait()


@dataclass
class Pool:
    """The manager and its nodes. Made in namespaces that end with the process that made them."""

    folder: Path
    machines: dict[str, str] = field(default_factory=lambda: dict(MACHINES))
    options: tuple[str, ...] = ("--min-run=0s", "--node-timeout=120s")
    agent_options: tuple[str, ...] = ()

    def start(self) -> None:
        """Builds the network, starts everything, and waits until all nodes have joined."""
        self.folder.mkdir(exist_ok=True)
        self.addresses = namespaces.build([MANAGER, *self.machines])
        namespaces.name_hosts(self.folder, self.addresses)
        certificates(self.folder / "certificates")
        self.manager = Daemon(MANAGER, self._manager_command(), self.folder / "manager.log")
        self.manager.start()
        self.agents = {}
        for name in self.machines:
            agent = Daemon(name, self._agent_command(name), self.folder / f"{name}.log")
            self.agents[name] = agent
            agent.start()
        until = time.monotonic() + UP_WITHIN_S
        while not self._all_there():
            assert time.monotonic() < until, self.state()
            time.sleep(0.05)

    def _all_there(self) -> bool:
        nodes = self.state()["nodes"]
        return sum(one["state"] == "there" and one["free_blocks"] > 0 for one in nodes) == len(
            self.machines
        )

    def _penstock(self, *words: object) -> list[str]:
        return [sys.executable, "-m", "penstock", *map(str, words)]

    def _files(self, prefix: str, name: str) -> list[str]:
        files = self.folder / "certificates"
        kinds = {"cert": f"{name}.crt", "key": f"{name}.key", "ca": "ca.crt"}
        return [f"--{prefix}-{kind}={files / file}" for kind, file in kinds.items()]

    def _manager_command(self) -> list[str]:
        database = f"--database=sqlite:///{self.folder / 'pool.db'}"
        socket = f"--socket={self.folder / 'pool.sock'}"
        listen = f"--listen={MANAGER}:{PORT}"
        files = self._files("tls", "manager")
        return self._penstock("pool", "serve", listen, database, socket, *files, *self.options)

    def _agent_command(self, name: str) -> list[str]:
        state = self.state_of(name)
        places = {"meter-dir": "meter", "cdi-dir": "cdi", "shim-dir": "shim"}
        return self._penstock(
            "agent", f"--node={name}", f"--simulate={self._machine(name)}",
            f"--state-dir={state}", "--metrics=",
            f"--pool={MANAGER}:{PORT}",
            f"--listen=0.0.0.0:{AGENT_PORT}", *self._files("tls", name), *self.agent_options,
            *(f"--{option}={state}-{part}" for option, part in places.items()),
        )  # fmt: skip

    def _machine(self, name: str) -> str:
        """What to simulate; "small" is an L4 with less memory."""
        profile, _, count = self.machines[name].partition(",")
        if profile != "small":
            return self.machines[name]
        text = Path(str(profiles.__file__)).with_name("l4.yaml").read_text()
        path = self.folder / "small.yaml"
        path.write_text(re.sub(r"memory_mib: \d+", f"memory_mib: {SMALL_MIB}", text))
        return f"{path},{count}"

    def state_of(self, node: str) -> Path:
        return self.folder / node

    # What runs on it.

    def start_on(self, node: str, *words: object) -> subprocess.Popen[str]:
        """`penstock pool acquire …` on a node."""
        return self.penstock_on(node, "pool", "acquire", *words)

    def penstock_on(self, node: str, *words: object) -> subprocess.Popen[str]:
        """`penstock …` on a node."""
        return subprocess.Popen(
            namespaces.within(node, *self._penstock(*words)),
            env=clean_environment(
                PENSTOCK_STATE_DIR=str(self.state_of(node)),
                PENSTOCK_SIM_KERNELS=KERNEL_RULES,
                PENSTOCK_TRAIN_DIR=str(self.folder / "runs"),
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def free_blocks(self) -> int:
        """The blocks that nobody has."""
        return self.state()["free_blocks"]

    def free_blocks_when_all_is_over(self) -> int:
        """The free blocks once no application is there, waiting for that."""
        until = time.monotonic() + UP_WITHIN_S
        while self.state()["applications"] and time.monotonic() < until:
            time.sleep(0.1)
        return self.free_blocks()

    def nodes_of(self, name: str) -> list[str]:
        """The nodes whose blocks an application has."""
        found = [one for one in self.state()["applications"] if one["name"] == name]
        return sorted({part["node"] for one in found for part in one["parts"]})

    def blocks_of(self, node: str) -> int:
        """All blocks of a node."""
        one = self._node(node)
        return one["last"] - one["first"] + 1

    def free_blocks_of(self, node: str) -> int:
        """The blocks of a node that nobody has."""
        return self._node(node)["free_blocks"]

    def _node(self, name: str) -> dict:
        (one,) = [one for one in self.state()["nodes"] if one["name"] == name]
        return one

    def wait_for_phase(self, application: str, phase: str) -> None:
        """Waits until an application has come so far."""
        until = time.monotonic() + UP_WITHIN_S
        while (now := self.phases().get(application)) != phase:
            assert time.monotonic() < until, f"{application} is {now}"
            time.sleep(0.1)

    def manage(self, *words: object) -> str:
        """What `penstock pool …` prints for the manager's administrator."""
        command = self._penstock("pool", *words, f"--pool={self.folder}/pool.sock")
        done = subprocess.run(
            namespaces.within(MANAGER, *command),
            env=clean_environment(), capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def state(self) -> dict:
        """`penstock pool status -o json`, asked of the manager."""
        return json.loads(self.manage("status", "-o", "json"))

    def phases(self) -> dict[str, str]:
        """The phase of each application."""
        return {one["name"]: one["phase"] for one in self.state()["applications"]}

    def events(self) -> list[dict]:
        """All events, oldest first."""
        lines = self.manage("watch", "--no-follow", "--json").splitlines()
        return [json.loads(line) for line in lines]

    def card_pids(self, node: str, application: str) -> list[int]:
        """The workers that serve an application on a node."""
        directory = self.state_of(node) / "tenants" / application
        started = environments(TENANT_VARIABLE, CARD_VARIABLE)
        cards = {pid: one for pid, one in started.items() if CARD_VARIABLE in one}
        return named("card-worker", members_of(cards, directory))

    def tenants(self, node: str) -> list:
        """The tenants of a node, from its agent; nothing while that is down."""
        socket = self.state_of(node) / "agent.sock"
        with contextlib.suppress(PenstockError), AgentClient.local(socket) as agent:
            return list(agent.tenants())
        return []

    def machine(self, node: str) -> Machine:
        """The node's simulated machine."""
        (path,) = [p for p in (self.state_of(node) / "machines").iterdir() if p.is_file()]
        return Machine(path)
