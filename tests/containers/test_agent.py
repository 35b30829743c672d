"""Containers of a real agent: granted by a command, held to their quota, ended when revoked."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.containers.conftest import PROGRAMS, PYNVML, RUN, _programs
from tests.containers.support.agent_node import Node, wait_until

from penstock.node.enforcement.cgroup import innermost_containers
from penstock.node.tenants.handshake_file import read_handshakes
from penstock_shim.pages import read_usage

LOOK = f"{PROGRAMS}/look.py"
WORKER = Path(__file__).parents[1] / "suspension" / "support"


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


def test_device_memory_of_a_container_is_released_and_restored_with_its_contents(node, python):
    name = f"m-{os.getpid()}"
    device = node.granted(name)
    mounted = ("-v", f"{WORKER}:/opt/worker:ro")
    work = podman_run(device, python, "/opt/worker/worker.py", "400", "8", options=mounted)
    undisturbed = subprocess.run(work, capture_output=True, text=True, timeout=60, check=True)
    # It must not be done before a command on a busy machine has suspended it.
    work.append("slowly")
    with subprocess.Popen(work, stdout=subprocess.PIPE, text=True) as container:
        lines = iter(container.stdout.readline, "")
        while next(lines) != "step 5\n":
            pass
        done = node("suspend", name, "--release-memory")
        assert done.returncode == 0, done.stderr
        (row,) = json.loads(node("ps", "-o", "json").stdout)
        assert row["suspension"] == "released"
        assert row["memory"]["used_bytes"] == 0
        assert row["host_memory_bytes"] >= 8 << 20
        assert container.poll() is None
        done = node("resume", name)
        assert done.returncode == 0, done.stderr
        result = [line for line in lines if line.startswith("result")]
    assert result == undisturbed.stdout.splitlines(keepends=True)[-1:]
    assert container.returncode == 0


def _commands_in(directory: Path) -> set[str]:
    """The commands of processes that have the tenant's page mounted."""
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
