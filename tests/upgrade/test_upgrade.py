"""An upgrade of agent and shim by one version, pages included, under tenants that run on.

The next version is this tree with another number and the next page version, built for real.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.agent.conftest import GIB, Node, wait_until
from tests.agent.support.programs import LAUNCHER, backlogged, environment_for
from tests.agent.support.watching import Sampler, Witness, assert_settles, build_witness
from tests.containers.conftest import PODMAN, RUN, host_pid, podman  # noqa: F401 - a fixture
from tests.upgrade.support.installation import (
    NEXT,
    Installation,
    next_abi,
    next_wheel,
    this_version,
    this_wheel,
)

from penstock.bench.stage import KERNEL_RULES
from penstock.node.admission.resize import Resize

pytestmark = pytest.mark.timed

WINDOW_S = 2.0


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> tuple[Path, Path]:
    return this_wheel(tmp_path_factory.mktemp("wheel")), next_wheel()


class UpgradedNode(Node):
    """An agent of an installation that is upgraded under it."""

    def __init__(self, state: Path, installation: Installation) -> None:
        super().__init__(state, "--cdi-dir=/var/run/cdi")
        self.python = str(installation.python)
        self.containers: list[str] = []

    def podman(self, granted, folder: Path, *command: str | Path) -> list[str]:
        """The command in a container of a tenant, on this machine's own root."""
        name = f"penstock-{os.getpid()}-{len(self.containers)}"
        self.containers.append(name)
        device = [f"--device={one}" for one in granted.cdi_devices]
        return [*RUN, "-i", f"--name={name}", *device, "-v", f"{folder}:{folder}:ro",
                "-e", f"PENSTOCK_SIM_KERNELS={KERNEL_RULES}", "--rootfs", "/:O",
                *map(str, command)]  # fmt: skip

    def page_version(self, tenant: str) -> int:
        page = self.state / "tenants" / tenant / "quota"
        return int.from_bytes(page.read_bytes()[8:12], "little")

    def share(self, name: str, seconds: float = WINDOW_S) -> float:
        with Sampler(self) as sampler:
            begun = self.machine().record(0)[0].at_ns
            wait_until(
                lambda: (
                    sampler.samples and sampler.samples[-1].at_ns - begun > (seconds + 0.2) * 1e9
                )
            )
        return sampler.percents(name, seconds)[-1]

    def close(self) -> None:
        for name in self.containers:
            subprocess.run([*PODMAN, "rm", "-f", "-i", name], capture_output=True, check=False)
        super().close()
        for spec in Path("/var/run/cdi").glob("penstock.io-vgpu_*.json"):
            if f"{self.state}/" in spec.read_text():  # the agent was ended without its tenants
                spec.unlink()


class ContainedWitness(Witness):
    """A witness in a container."""

    def __init__(self, node: UpgradedNode, granted, program: Path) -> None:
        self.process = subprocess.Popen(
            node.podman(granted, program.parent, program, "200"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        node.programs.append(self.process)


@pytest.fixture
def node(podman, tmp_path, wheels):  # noqa: F811 - the fixture itself
    if os.geteuid() != 0:
        pytest.skip("offers tenants to containers: needs root")
    installation = Installation(tmp_path / "penstock")
    installation.install(wheels[0])
    made = UpgradedNode(tmp_path / "state", installation)
    made.installation = installation
    made.start()
    yield made
    if made.process.poll() is None:
        with made.client() as agent:
            for tenant in agent.tenants():
                agent.revoke(tenant.name, 0)
    made.close()


def mapped_shim(pid: int) -> str:
    """The line of a process's map that names the shim."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return next(line for line in lines if "/libpenstock.so" in line)


class Old:
    """Tenants of the earlier release: on the machine, in a container, by `penstock run`."""

    def __init__(self, node: UpgradedNode, program: Path) -> None:
        self.node, self.program = node, program
        self.inside = f"in-{os.getpid()}"
        self.granted = {
            "host": node.tenant("host", cores=300, memory=4 * GIB),
            self.inside: node.tenant(self.inside, cores=200, memory=4 * GIB, container=True),
        }
        self.host = Witness(node, self.granted["host"], program)
        self.contained = ContainedWitness(node, self.granted[self.inside], program)
        self.run = subprocess.Popen(
            [node.python, "-m", "penstock", "run", "-q", "--name=run", "--memory=1Gi", "--cores=5",
             "--", "sh", "-c", "read word; exit 7"],
            env=node.environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        node.programs.append(self.run)
        for name in self.granted:
            wait_until(lambda name=name: node.usage(name).devices[0].launches > 500, 60)
        wait_until((node.state / "tenants" / "run").exists)
        self.abi = node.page_version("host")
        page = node.state / "tenants" / self.inside / "usage"
        self.contained_pid = host_pid(program.name, page)
        self.shim_in_container = mapped_shim(self.contained_pid)

    def assert_its_shim_is_whole(self, content: bytes) -> None:
        """The files that its process on the machine has mapped were replaced, not overwritten."""
        line = mapped_shim(self.host.process.pid)
        assert line.endswith("(deleted)")
        start, end = (int(one, 16) for one in line.split()[0].split("-"))
        mapped = Path(f"/proc/{self.host.process.pid}/map_files/{start:x}-{end:x}")
        assert mapped.read_bytes() == content

    def assert_is_changed(self) -> None:
        """Resizes the tenant, which then shares it with a process that loads the new shim."""
        node = self.node
        with node.client() as agent:
            agent.resize("host", Resize(cores_permille=150))
            agent.resize(self.inside, Resize(cores_permille=300))
        assert_settles(lambda seconds: node.share("host", seconds), 15, 3)
        assert_settles(lambda seconds: node.share(self.inside, seconds), 30, 3)
        second = node.launch_in(environment_for(self.granted["host"]), LAUNCHER, *backlogged(600))
        wait_until(lambda: len(node.usage("host").slots) == 2)
        assert "(deleted)" not in mapped_shim(second.pid)
        assert_settles(lambda seconds: node.share("host", seconds), 15, 3)
        second.kill()
        second.wait()

    def assert_gets_another_container(self) -> None:
        command = self.node.podman(
            self.granted[self.inside], self.program.parent, self.program, "50"
        )
        done = subprocess.run(
            command, input="", capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr

    def end(self) -> dict[str, int]:
        """Ends it: own exit code, no failed call. Returns the use by its pages, in ns."""
        node = self.node
        assert mapped_shim(self.contained_pid) == self.shim_in_container
        self.run.communicate("on\n", timeout=30)
        assert self.run.returncode == 7
        for one in (self.host, self.contained):
            assert one.says()["errors"] == {}
            assert one.end() == 0
        spent_ns = {}
        for name in self.granted:
            wait_until(lambda name=name: not node.usage(name).slots)
            spent_ns[name] = node.usage(name).devices[0].spent_ns
            with node.client() as agent:
                agent.revoke(name, 0)
        return spent_ns


def assert_new_tenants_begin_with_the_new_release(node: UpgradedNode, program: Path) -> None:
    name = f"new-{os.getpid()}"
    new = {
        "new": Witness(node, node.tenant("new", cores=100), program),
        name: ContainedWitness(node, node.tenant(name, cores=100, container=True), program),
    }
    for tenant, one in new.items():
        wait_until(lambda one=one: one.says()["launch"]["calls"] > 10, 60)
        assert node.page_version(tenant) == next_abi()
        assert one.says()["errors"] == {}
        assert one.end() == 0
    releases = {path.name.split("-")[0] for path in Path(f"{node.state}-shim").iterdir()}
    assert releases == {this_version(), NEXT}


def test_old_tenants_run_on_over_an_upgrade_and_new_ones_begin_with_the_new_release(
    node, wheels, tmp_path
):
    program = build_witness(tmp_path)
    old = Old(node, program)
    content = node.installation.shim.read_bytes()
    with Sampler(node) as meanwhile:
        assert node.stop() == 0
        node.installation.install(wheels[1])
        assert node.installation.shim.read_bytes() != content
        old.assert_its_shim_is_whole(content)
        node.start()
        wait_until(lambda: meanwhile.percents("host", WINDOW_S))
    with node.client() as agent:
        assert agent.node().version == NEXT
        assert {tenant.name for tenant in agent.tenants()} == {"host", old.inside, "run"}
    for name, quota in (("host", 30), (old.inside, 20)):
        seen = meanwhile.percents(name, WINDOW_S)
        assert abs(sum(seen) / len(seen) - quota) < 5, (name, min(seen), max(seen))
        assert node.page_version(name) == old.abi == next_abi() - 1
    old.assert_is_changed()
    old.assert_gets_another_container()
    assert_new_tenants_begin_with_the_new_release(node, program)
    spent_ns = old.end()
    assert node.stop() == 0
    done = node("usage", "--since=1h", "-o", "json", f"--meter-dir={node.state}-meter")
    rows = {row["tenant"]: row["device_ns"] for row in json.loads(done.stdout)["usage"]}
    assert {name: rows[name] for name in spent_ns} == spent_ns
