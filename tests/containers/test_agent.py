"""Containers of a real agent: granted by a command, held to their quota, ended when revoked."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.containers.conftest import PROGRAMS, PYNVML, RUN, _programs

from penstock.node.enforcement.cgroup import innermost_containers
from penstock.node.tenants.handshake_file import read_handshakes
from penstock_shim.pages import read_usage

LOOK = f"{PROGRAMS}/look.py"


def wait_until(condition, timeout_s=30.0):
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return value


class Node:
    """An agent whose specs lie where podman reads them."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.environment = {**os.environ, "PENSTOCK_STATE_DIR": str(self.state)}
        self.folder = folder
        self.start()

    def start(self) -> None:
        self.agent = subprocess.Popen(
            [sys.executable, "-m", "penstock", "agent", "--simulate=h200", "--metrics=",
             f"--meter-dir={self.folder / 'meter'}", f"--shim-dir={self.folder / 'shim'}"],
            env=self.environment, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert '"started"' in self.agent.stderr.readline()

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "penstock", *arguments]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )

    def granted(self, name: str, *options: str) -> list[str]:
        """Makes a tenant; podman's options that name it."""
        done = self("grant", name, "--memory=4Gi", "--cores=50", *options)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    def events(self, name: str) -> list[dict]:
        file = self.state / "tenants" / name / "events.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()]

    def kill(self) -> None:
        self.agent.kill()
        self.agent.wait()
        self.agent.stderr.close()

    def close(self) -> None:
        for directory in (self.state / "tenants").glob("[!.]*"):
            done = self("revoke", directory.name, "--grace=0s")
            assert done.returncode == 0, done.stderr
        with contextlib.suppress(ProcessLookupError):
            self.agent.send_signal(signal.SIGTERM)
        self.agent.wait(30)
        self.agent.stderr.close()


@pytest.fixture
def node(podman, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("offers tenants to containers: needs root")
    made = Node(tmp_path)
    yield made
    made.close()


def podman_run(device: list[str], *command: str, options=()) -> list[str]:
    return [*RUN, *device, *_programs(), *options, "--rootfs", "/:O", *command]


def test_a_container_of_a_granted_tenant_gets_its_quota_also_after_the_agent_was_killed(
    node, python
):
    name = f"t-{os.getpid()}"
    device = node.granted(name)
    assert device == ["--device", f"penstock.io/vgpu={name}"]
    for _ in range(2):
        look = podman_run(
            device, python, LOOK, "1024", "8192", options=("-e", f"PYTHONPATH={PYNVML}")
        )
        done = subprocess.run(look, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        seen = json.loads(done.stdout)
        assert (seen["cuda"]["total_mib"], seen["cuda"]["beyond"]) == (4096, 2)
        node.kill()
        node.start()
    assert read_usage(node.state / "tenants" / name / "usage").devices[0].refusals >= 2


def test_a_tenant_that_is_revoked_is_no_device_any_more_and_its_container_ends(node, python):
    name = f"r-{os.getpid()}"
    device = node.granted(name)
    sleeper = subprocess.Popen(podman_run(device, "sleep", "600"), stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: "sleep" in _commands_in(node.state / "tenants" / name))
        assert node("revoke", name, "--grace=1s").returncode == 0
        assert sleeper.wait(30) != 0
    finally:
        sleeper.kill()
        sleeper.wait()
    again = subprocess.run(podman_run(device, "true"), capture_output=True, text=True, check=False)
    assert again.returncode != 0
    assert "unresolvable" in again.stderr


def _commands_in(directory: Path) -> set[str]:
    """Of the processes that have the tenant's page mounted."""
    page = (directory / "usage").stat()
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            seen = (entry / "root/run/penstock-tenant/usage").stat()
            if (seen.st_dev, seen.st_ino) == (page.st_dev, page.st_ino):
                found.add((entry / "comm").read_text().strip())
    return found


def test_a_containers_processes_are_known_by_handshake_and_cgroup_and_write_nothing_else(
    node, python
):
    name = f"h-{os.getpid()}"
    device = node.granted(name)
    directory = node.state / "tenants" / name
    assert directory.stat().st_mode & 0o077 == 0, "its pages are open to all, so it is closed"
    script = (
        "import ctypes, os, sys, time\n"
        f"sys.path.insert(0, '{PROGRAMS}')\n"
        "found = [os.path.join(at, one) for at, folders, files in os.walk('/run/penstock-tenant')\n"
        "         for one in ['.', *folders, *files]]\n"
        "mine = []\n"
        "for path in found:\n"
        "    try: os.chmod(path, os.stat(path).st_mode & 0o7777); mine.append(path)\n"
        "    except OSError: pass\n"
        "cuda = ctypes.CDLL('libcuda.so.1')\n"
        "context, pointer = ctypes.c_void_p(), ctypes.c_uint64()\n"
        "assert not cuda.cuInit(0) and not cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)\n"
        "assert not cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20))\n"
        "print(os.getpid(), *sorted(map(os.path.basename, mine)), flush=True)\n"
        "time.sleep(600)\n"
    )
    program = subprocess.Popen(
        podman_run(device, python, "-c", script), stdout=subprocess.PIPE, text=True
    )
    try:
        inner, *writable = program.stdout.readline().split()
        assert writable == ["machine", "usage"]
        (one,) = wait_until(lambda: read_handshakes(directory))
        assert one.inner_pid == int(inner) != one.pid
        paths = innermost_containers(one.pid)
        assert paths, "podman gives each container a cgroup"
        listed = json.loads(node("ps", "-o", "json").stdout)
        (row,) = [row for row in listed if row["tenant"] == name]
        assert [process["pid"] for process in row["processes"]] == [one.pid]
    finally:
        assert node("revoke", name, "--grace=0s").returncode == 0
        program.kill()
        program.communicate()
