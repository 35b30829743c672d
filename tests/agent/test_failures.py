"""The table of failures (ARCHITECTURE.md) with a running agent and launching tenants."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.agent.conftest import GIB, Node, wait_until
from tests.agent.support.watching import Sampler, Witness, assert_settles, build_witness
from tests.support import named_tests

from penstock.model import PenstockError
from penstock.node.admission.resize import Resize
from penstock_shim.pages import read_quota

from .conftest import request

pytestmark = pytest.mark.timed

if TYPE_CHECKING:
    from penstock_shim.simulator import Machine

HERE = Path(__file__).parent
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system: needs root")
POINTS = 5.0


@pytest.fixture(scope="module")
def witness_program(tmp_path_factory):
    return build_witness(tmp_path_factory.mktemp("witness"))


def share(node: Node, name: str, seconds: float = 2.0, machine: Machine | None = None) -> float:
    with Sampler(node, machine) as sampler:
        wait_until(lambda: len(sampler.samples) > 1 and sampler.percents(name, seconds))
    return sampler.percents(name, seconds)[0]


def assert_works(node: Node, witness: Witness, machine: Machine | None = None) -> None:
    """The tenant has its quota of 30, and no call of it failed."""
    assert abs(share(node, "t", machine=machine) - 30) < POINTS
    assert witness.says()["errors"] == {}


def beats(node: Node) -> None:
    """The reconcile loop runs: the tenant's page gets heartbeats."""
    page = node.state / "tenants" / "t" / "quota"
    last = read_quota(page).heartbeat_ns
    wait_until(lambda: read_quota(page).heartbeat_ns > last)


def assert_metered(node: Node, witness: Witness) -> None:
    """After its end, the metered usage equals its page, to the nanosecond."""
    assert witness.end() == 0
    wait_until(lambda: not node.usage("t").slots)
    spent_ns = node.usage("t").devices[0].spent_ns
    with node.client() as agent:
        agent.revoke("t", 0)
    assert node.stop() == 0
    done = node("usage", "t", "--since=2000-01-01", "--until=2100-01-01", "-o", "json",
                f"--meter-dir={node.state}-meter")  # fmt: skip
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["usage"]
    assert row["device_ns"] == spent_ns


@pytest.fixture
def disk(tmp_path):
    """A small separate file system for state and meter."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "none", str(folder)]
    subprocess.run(mount, check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def small(disk):
    node = Node(disk / "state")
    node.start()
    yield node
    node.close()


def fill(folder: Path) -> None:
    command = ["dd", "if=/dev/zero", f"of={folder}/fill", "bs=4k"]
    subprocess.run(command, capture_output=True, check=False)
    assert os.statvfs(folder).f_bavail == 0


@needs_root
def test_on_a_full_disk_nothing_new_begins_and_what_is_there_goes_on(small, disk, witness_program):
    node = small
    witness = Witness(node, node.tenant("t", cores=300, memory=GIB), witness_program)
    wait_until(lambda: node.usage("t").devices[0].launches > 500)
    fill(disk)
    with node.client() as agent:
        with pytest.raises(PenstockError, match="free up disk space"):
            agent.grant(request("more", memory=GIB))
        with pytest.raises(PenstockError, match="free space"):
            agent.resize("t", Resize(cores_permille=500))
        assert [tenant.name for tenant in agent.tenants()] == ["t"]
    assert {path.name for path in (node.state / "tenants").iterdir()} == {"t"}
    beats(node)
    assert_works(node, witness)
    node.kill()
    node.start()  # on the full disk still
    with node.client() as agent:
        assert [tenant.name for tenant in agent.tenants()] == ["t"]
    beats(node)
    assert_works(node, witness)
    (disk / "fill").unlink()
    with node.client() as agent:
        agent.grant(request("more", memory=GIB))
        agent.revoke("more", 0)
    assert_metered(node, witness)


@needs_root
def test_on_a_read_only_disk_tenants_go_on_and_orders_are_refused(small, disk, witness_program):
    node = small
    witness = Witness(node, node.tenant("t", cores=300, memory=GIB), witness_program)
    wait_until(lambda: node.usage("t").devices[0].launches > 500)
    machine = node.machine()
    # What is open stays so, as when the kernel makes a file system read-only after an error.
    subprocess.run(["mount", "--bind", disk, disk], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", disk], check=True)
    try:
        with node.client() as agent:
            for order in (
                lambda: agent.grant(request("more", memory=GIB)),
                lambda: agent.resize("t", Resize(cores_permille=500)),
                lambda: agent.suspend("t"),
            ):
                with pytest.raises(PenstockError, match="Read-only file system"):
                    order()
            (tenant,) = agent.tenants()
            assert (tenant.shares[0].cores_permille, tenant.suspended) == (300, False)
        beats(node)
        assert_works(node, witness, machine)
        node.kill()
        refused = node(*node.agent_command())
        assert refused.returncode == 2
        assert "Read-only file system" in refused.stderr
        assert_works(node, witness, machine)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
    node.start()
    beats(node)
    assert_works(node, witness)
    assert_metered(node, witness)


class JumpingNode(Node):
    """An agent whose wall clock the test sets."""

    def __init__(self, state: Path, library: Path) -> None:
        super().__init__(state)
        self._library = library
        self._offset = state.with_name("offset")
        self.jump(0)

    @property
    def environment(self) -> dict[str, str]:
        clock = {"LD_PRELOAD": str(self._library), "WALL_CLOCK_FILE": str(self._offset)}
        return {**super().environment, **clock}

    def jump(self, seconds: int) -> None:
        aside = self._offset.with_suffix(".new")
        aside.write_text(str(seconds))
        aside.replace(self._offset)


@pytest.fixture
def jumping(tmp_path):
    library = tmp_path / "libwall_clock.so"
    source = HERE / "programs" / "wall_clock.c"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, source, "-o", library], check=True)
    node = JumpingNode(tmp_path / "state", library)
    node.start()
    yield node
    node.close()


def test_when_the_wall_clock_jumps_no_tenant_notices_and_no_amount_changes(
    jumping, witness_program
):
    node = jumping
    witness = Witness(node, node.tenant("t", cores=300, memory=GIB), witness_program)
    wait_until(lambda: node.usage("t").devices[0].launches > 500)
    for seconds in (-3 * 3600, 40 * 86400):
        node.jump(seconds)
        beats(node)
        assert_works(node, witness)
        with node.client() as agent:
            assert [tenant.name for tenant in agent.tenants()] == ["t"]
    node.kill()
    node.jump(-2 * 86400)  # past a midnight that may come meanwhile
    node.start()
    assert_works(node, witness)
    assert [e["event"] for e in node.events("t")] == ["granted", "adopted"]
    days = {event["time"][:10] for event in node.events("t")}
    assert len(days) == 2, "the agent's clock did jump"
    assert_metered(node, witness)


def test_a_socket_that_was_taken_away_is_made_again(node):
    node.tenant("t")
    for spoil in (node.socket.unlink, lambda: (node.socket.unlink(), node.socket.touch())):
        spoil()
        wait_until(node.socket.is_socket)
        with node.client() as agent:
            assert [tenant.name for tenant in agent.tenants()] == ["t"]
        assert len(list(node.state.glob(".agent.sock*"))) == 0


def test_an_agent_that_gets_no_processor_harms_nobody(node, witness_program):
    """The agent runs at the lowest priority beside programs that overload every processor."""
    witness = Witness(node, node.tenant("t", cores=300, memory=GIB), witness_program)
    wait_until(lambda: node.usage("t").devices[0].launches > 500)
    for task in Path(f"/proc/{node.process.pid}/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(task.name), 19)
    loop = [sys.executable, "-c", "while True: pass"]
    burners = [subprocess.Popen(loop) for _ in range(2 * os.cpu_count())]
    try:
        # The simulated device is as slow as its machine: that it is no more is all there is to see.
        assert share(node, "t", 3.0) < 30 + POINTS
        beats(node)
        with node.client() as agent:
            assert [tenant.name for tenant in agent.tenants()] == ["t"]
        assert witness.says()["errors"] == {}
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    assert_settles(lambda seconds: share(node, "t", seconds), 30, POINTS)
    kinds = {event["event"] for event in node.events("t")}
    assert kinds == {"granted"}


FILES_ALONE = 65  # rows that name files and no test in them: may become fewer, never more


def test_every_row_of_the_table_names_tests_that_are_there():
    """Rows name tests as `file::test`, separated by commas; some old rows name only files."""
    text = (HERE.parents[1] / "docs/failure-modes.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    heads = {tuple(one) for one in rows if "what fails" in one[0].lower()}
    rows = [row for row in rows if tuple(row) not in heads]
    assert len(rows) > 70
    alone = []
    for row in rows:
        assert len(row) == 3, row
        for name in row[2].split(", "):
            file, named, test = name.strip("`").partition("::")
            assert (HERE.parent / file).is_file(), row
            if named:
                assert named_tests.is_defined(HERE.parent / file, test), row
            else:
                alone.append(row)
    assert len({row[0] for row in alone}) <= FILES_ALONE, alone[-1]
