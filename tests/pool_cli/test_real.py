"""The command line and the library on a real manager and a real agent with simulated cards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from tests.agent.conftest import Node, wait_until
from tests.pool_cli.conftest import Commands
from tests.pool_cli.support import certificates
from tests.support.openssl import needs_openssl

BLOCKS = 989  # of a simulated H200


class RealManager:
    """`penstock pool serve` with its files in the test's folder."""

    def __init__(self, folder, *options):
        self.options = options
        self.folder = folder
        self.socket = folder / "state" / "pool.sock"
        self.process = None

    def start(self):
        self.socket.parent.mkdir(exist_ok=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        self.log = self.folder / "serve.log"
        command = [sys.executable, "-m", "penstock", "pool", "serve", "--min-run=0s", "--lease=2s"]
        places = [f"--database=sqlite:///{self.folder / 'pool.db'}", f"--socket={self.socket}"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, *places, *self.options], env=kept, stderr=log
            )
        wait_until(lambda: self.start_line() or self.process.poll() is not None, 60)
        self.started = self.start_line()
        assert self.started, self.log.read_text()

    def start_line(self):
        lines = [line for line in self.log.read_text().splitlines() if line.endswith("}")]
        found = [one for one in map(json.loads, lines) if one["event"] == "started"]
        return found[-1] if found else None

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.socket.unlink()

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)


@pytest.fixture
def real(tmp_path):
    """Commands on a node of a real pool."""
    with real_pool(tmp_path) as commands:
        yield commands


@contextlib.contextmanager
def real_pool(tmp_path, *options):
    """A manager and one node whose agent has these options."""
    manager = RealManager(tmp_path)
    manager.start()
    node = Node(tmp_path / "state", f"--pool={manager.socket}", *options)
    commands = Commands(tmp_path / "state")
    commands.manager, commands.node = manager, node
    node.start()
    try:
        wait_until(lambda: state_of(commands)["free_blocks"] == BLOCKS, 60)
        yield commands
    finally:
        commands.close()
        node.close()
        manager.close()


def state_of(commands):
    done = commands("status", "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def phases(commands):
    return {one["name"]: one["phase"] for one in state_of(commands)["applications"]}


def is_free(commands):
    return state_of(commands)["free_blocks"] == BLOCKS


def program(code, commands, **options):
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=commands.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_a_command_has_its_blocks_while_it_runs(real):
    done = real("acquire", "--tflops=50", "--priority=10", "--name=train", "--", "sh", "-c",
                "echo $PENSTOCK_TENANT_DIR; exit 3")  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert done.stdout.strip() == str(real.node.state / "tenants" / "train")
    assert "penstock: application train: 50 blocks (1-50)" in done.stderr
    wait_until(lambda: is_free(real), 30)


def test_blocks_are_held_resized_shown_and_released(real):
    assert real("acquire", "--tflops=50", "--name=held").returncode == 0
    assert real("resize", "held", "--tflops=40").stdout == "application held has 40 blocks: 1-40\n"
    (one,) = state_of(real)["applications"]
    assert (one["phase"], one["blocks"], one["runs"]) == ("running", 40, [{"first": 1, "last": 40}])
    assert "A held: 40 blocks (1-40)" in real("map").stdout
    assert real("why", "held").stdout.startswith("application held is running: 40 blocks\n")
    assert "it asks for 5000 blocks" in real("why", "--tflops=5000").stdout
    assert real("compact", "--dry-run").returncode == 0
    assert real("release", "held").returncode == 0
    events = real("watch", "--no-follow", "--json").stdout.splitlines()
    ours = [e["event"] for e in map(json.loads, events) if e["application"] == "held"]
    assert ours[0] == "claimed"
    assert ours[-1] == "released"
    assert is_free(real)


def test_no_room_and_a_wait_in_vain_have_their_exit_code(real):
    assert real("acquire", f"--tflops={BLOCKS}", "--name=all").returncode == 0
    done = real("acquire", "--tflops=5")
    assert done.returncode == 75
    done = real("acquire", "--tflops=5", "--wait=1s", "--", "true")
    assert done.returncode == 75
    assert "penstock: application true is waiting, place 1 in the queue: 5 blocks" in done.stderr


def test_a_waiter_outlasts_the_managers_death_and_is_served_once(real):
    assert real("acquire", f"--tflops={BLOCKS}", "--name=all").returncode == 0
    waiter = real.start("acquire", "--tflops=50", "--wait=5m", "--name=next", "--", "echo", "runs")
    assert "next is waiting" in waiter.stderr.readline()
    real.manager.kill()
    real.manager.start()
    wait_until(lambda: phases(real).get("next") == "waiting", 60)
    assert real("release", "all").returncode == 0
    assert waiter.wait(60) == 0
    assert waiter.stdout.read() == "runs\n"
    wait_until(lambda: is_free(real), 30)


def test_an_interrupted_waiter_leaves_the_queue(real):
    assert real("acquire", f"--tflops={BLOCKS}", "--name=all").returncode == 0
    waiter = real.start("acquire", "--tflops=50", "--wait=5m", "--name=next")
    waiter.stderr.readline()
    waiter.send_signal(signal.SIGINT)
    assert waiter.wait(30) == 130
    wait_until(lambda: "next" not in phases(real), 30)


def test_a_killed_command_gives_its_blocks_back(real):
    process = real.start("acquire", "--tflops=50", "--name=train", "--", "sleep", "600",
                         start_new_session=True)  # fmt: skip
    wait_until(lambda: phases(real).get("train") == "running", 30)
    os.killpg(process.pid, signal.SIGKILL)
    wait_until(lambda: is_free(real), 60)


HOLDER = """
import penstock
with penstock.acquire(tflops=50, priority=1, wait="5m", name="train"{more}) as card:
    if card.is_local:
        import numpy
        from numba import cuda
        data = cuda.to_device(numpy.arange(1 << 20))
    print(card.blocks, card.runs, flush=True)
    while input() == "why":
        print(card.suspended, card.why().phase, flush=True)
    if card.is_local:
        assert (data.copy_to_host() == numpy.arange(1 << 20)).all()
print("ended", flush=True)
"""


def ask(process):
    process.stdin.write("why\n")
    process.stdin.flush()
    return process.stdout.readline().split()


def end(process):
    process.stdin.write("end\n")
    process.stdin.flush()
    assert process.stdout.readline() == "ended\n", process.stderr.read()
    assert process.wait(30) == 0


def test_a_program_of_the_library_is_suspended_for_an_urgent_one_and_goes_on(real):
    process = program(HOLDER.format(more=""), real)
    real.started.append(process)
    assert process.stdout.readline() == "50 ((1, 50),)\n", process.stderr.read()
    assert ask(process) == ["False", "running"]
    urgent = real.start("acquire", f"--tflops={BLOCKS}", "--priority=10", "--wait=1m",
                        "--name=urgent", "--", "sh", "-c", "echo runs; read line",
                        stdin=subprocess.PIPE)  # fmt: skip
    assert urgent.stdout.readline() == "runs\n", urgent.stderr.read()
    assert ask(process) == ["True", "suspended"]
    assert "what would help" not in real("why", "train").stderr
    urgent.kill()
    urgent.communicate()  # closes its input, so that its command ends
    wait_until(lambda: phases(real) == {"train": "running"}, 60)
    assert ask(process) == ["False", "running"]
    end(process)
    wait_until(lambda: is_free(real), 30)


def test_a_holder_elsewhere_keeps_its_lease_and_loses_it_when_it_is_killed(real):
    process = program(HOLDER.format(more=f", pool={str(real.manager.socket)!r}"), real)
    real.started.append(process)
    assert process.stdout.readline() == "50 ((1, 50),)\n", process.stderr.read()
    with pytest.raises(AssertionError, match="waited in vain"):  # for three leases
        wait_until(lambda: "train" not in phases(real), 6)
    assert ask(process) == ["False", "running"]
    process.kill()
    wait_until(lambda: is_free(real), 60)


@needs_openssl
def test_a_node_and_an_administrator_use_the_certificates_of_the_how_to(tmp_path):
    files = certificates.make(tmp_path / "certificates")
    manager = RealManager(
        tmp_path,
        "--listen=localhost:0",
        *(f"--tls-{word}={files / name}" for word, name in
          {"cert": "manager.crt", "key": "manager.key", "ca": "ca.crt"}.items()),
    )  # fmt: skip
    manager.start()

    def options_of(name):
        return [f"--pool=localhost:{manager.started['port']}", f"--pool-cert={files / name}.crt",
                f"--pool-key={files / name}.key", f"--pool-ca={files / 'ca.crt'}"]  # fmt: skip

    node = Node(tmp_path / "node", "--node=node-1", *options_of("node-1"))
    elsewhere, here = Commands(tmp_path / "admin"), Commands(tmp_path / "node")
    node.start()
    try:

        def nodes():
            done = elsewhere("status", "-o", "json", *options_of("admin"))
            assert done.returncode == 0, done.stderr
            return [one["name"] for one in json.loads(done.stdout)["nodes"]]

        wait_until(lambda: nodes() == ["node-1"], 60)
        assert here("acquire", "--tflops=5", "--", "true").returncode == 0
        done = elsewhere("acquire", "--tflops=5", "--name=far", *options_of("admin"))
        assert done.returncode == 0, done.stderr
        assert elsewhere("release", "far", *options_of("admin")).returncode == 0
        done = elsewhere("status", *options_of("node-1"))
        assert done.returncode == 2
        assert "a node may only join" in done.stderr
    finally:
        node.close()
        manager.close()


WORKER = """
import numpy
from numba import cuda
data = cuda.to_device(numpy.arange(1 << 20))
print("works", flush=True)
input()
"""


def line_of(process):
    """The next line of its standard error; it is awaited for a minute at most."""
    timer = threading.Timer(60, process.kill)
    timer.start()
    try:
        return process.stderr.readline()
    finally:
        timer.cancel()


def started(real, name, tflops, priority, *command):
    process = real.start("acquire", f"--tflops={tflops}", f"--priority={priority}", "--wait=1m",
                         f"--name={name}", "--", *command, stdin=subprocess.PIPE)  # fmt: skip
    assert process.stdout.readline() == "works\n", process.stderr.read()
    return process


def test_the_user_of_a_command_is_told_when_it_stands_still_and_when_it_goes_on(real):
    worker = started(real, "train", 50, 1, sys.executable, "-c", WORKER)
    assert "application train: 50 blocks (1-50)" in worker.stderr.readline()
    urgent = started(real, "urgent", BLOCKS, 10, "sh", "-c", "echo works; read line")
    told = [line_of(worker) for _ in range(2)]
    assert "application train is being suspended: it makes room for urgent" in told[0]
    assert "application train is suspended" in told[1]
    urgent.stdin.write("\n")
    urgent.stdin.flush()
    assert urgent.wait(30) == 0
    told = [line_of(worker) for _ in range(2)]
    assert "application train is being resumed" in told[0]
    assert told[1] == "penstock: application train goes on\n"
    worker.stdin.write("\n")
    worker.stdin.flush()
    assert worker.wait(30) == 0


def test_a_command_that_the_pool_ends_says_so(real):
    worker = started(real, "train", 50, 1, sys.executable, "-c", WORKER)
    assert real("release", "train", "--reason", "maintenance").returncode == 0
    assert worker.wait(30) == 143
    assert "application train was released: maintenance" in worker.stderr.read()
