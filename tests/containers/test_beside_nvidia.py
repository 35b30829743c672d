"""NVIDIA's own CDI device beside ours: its real hooks, and a real driver library without a GPU."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from tests.containers.conftest import GIB, PROGRAMS, grant_of, or_skip
from tests.containers.support import images

from penstock.devices import Device, DriverLibraries
from penstock.node.containers import companions
from penstock.node.tenants.tenant import create_tenant

FOLDER = "/usr/lib/x86_64-linux-gnu"
SPEC = Path("/var/run/cdi/penstock-test-nvidia.json")
UUID = "GPU-955ef018-3bd9-5f27-80b3-fa20ee8d19c5"
OPEN = f"python3 {PROGRAMS}/init.py"


class _Real:
    machine = None

    def devices(self):
        return [Device(0, UUID, "NVIDIA H200", 1 << 37, 1 << 29, None, simulated=False)]


@pytest.fixture(scope="module")
def driver(podman, real_libcuda):
    """The path of the driver's library in containers: its full name, as NVIDIA mounts it."""
    program = or_skip(images.nvidia_hook)
    inside = f"{FOLDER}/{real_libcuda.name}"

    def hook(*arguments: str) -> dict:
        args = ["nvidia-cdi-hook", *arguments]
        return {"hookName": "createContainer", "path": str(program), "args": args}

    edits = {
        "mounts": [
            {
                "hostPath": str(real_libcuda),
                "containerPath": inside,
                "options": ["ro", "nosuid", "nodev", "bind"],
            }
        ],
        "hooks": [
            hook("create-symlinks", "--link", f"libcuda.so.1::{FOLDER}/libcuda.so"),
            hook("update-ldcache", "--folder", FOLDER),
        ],
    }
    spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu"}
    spec["devices"] = [{"name": UUID, "containerEdits": edits}]
    SPEC.parent.mkdir(parents=True, exist_ok=True)
    SPEC.write_text(json.dumps(spec))
    yield inside
    SPEC.unlink()


@pytest.fixture(scope="module")
def tenant(live, driver):
    grant = grant_of(_Real(), f"beside-{os.getpid()}", GIB, 500)
    with live.state.lock():
        made, lock = create_tenant(live.state, grant, DriverLibraries(driver, ""))
    os.close(lock)
    live.containers.offer(made)
    return made


def run(live, root, tenant, script: str):
    (beside,) = companions(tenant)
    options = ("--device", beside, "-e", "PENSTOCK_LOG=stderr")
    done = live.run(root, tenant, "/bin/sh", "-c", script, options=options)
    assert done.returncode == 0, done.stderr
    return done


def test_the_hooks_of_nvidias_runtime_leave_the_shim_in_the_drivers_place(
    live, bullseye_root, tenant, driver
):
    script = (
        f"cmp {FOLDER}/libcuda.so.1 /run/penstock-shim/libpenstock.so && echo shim;"
        f"cmp {FOLDER}/libcuda.so /run/penstock-shim/libpenstock.so && echo linked;"
        f"[ $(stat -c %s {driver}) -gt 1000000 ] && echo driver; /sbin/ldconfig -p"
    )
    said = run(live, bullseye_root, tenant, script).stdout
    assert said.startswith("shim\nlinked\ndriver\n")
    (cached,) = set(re.findall(r"libcuda\.so\.1 .*=> (.*)", said))
    assert cached.endswith("/x86_64-linux-gnu/libcuda.so.1")


@pytest.mark.parametrize("name", ["libcuda.so.1", "libcuda.so", f"{FOLDER}/libcuda.so.1", "driver"])
def test_every_name_of_the_driver_leads_through_the_shim(live, bullseye_root, tenant, driver, name):
    path = driver if name == "driver" else name
    done = run(live, bullseye_root, tenant, f"{OPEN} {path}")
    assert done.stdout == "100\n", "CUDA_ERROR_NO_DEVICE, as the real driver says here"
    assert f"libcuda.so.1: {driver}\n" in done.stderr, "the shim has opened the driver below it"


@pytest.mark.parametrize("way", ["library-path", "loader-cache"])
def test_a_newer_driver_of_the_image_lies_below_the_shim(live, bullseye_root, tenant, driver, way):
    """A forward compatibility package: by the image's environment, or its ld.so.conf.d."""
    found = "export LD_LIBRARY_PATH=/tmp/compat"
    if way == "loader-cache":
        found = "echo /tmp/compat > /etc/ld.so.conf.d/00-compat.conf; /sbin/ldconfig"
    script = (
        f"mkdir -p /tmp/compat; cp {driver} /tmp/compat/libcuda.so.999.1;"
        f"ln -sf libcuda.so.999.1 /tmp/compat/libcuda.so.1; {found}; {OPEN} libcuda.so.1"
    )
    done = run(live, bullseye_root, tenant, script)
    assert done.stdout == "100\n"
    assert "libcuda.so.1: /tmp/compat/libcuda.so.1, newer than this machine's" in done.stderr
    assert f"libcuda.so.1: {driver}\n" not in done.stderr
    assert "ignored" not in done.stderr


def test_without_the_quota_the_driver_is_not_reached(live, bullseye_root, tenant, driver):
    good = tenant.quota_page.read_bytes()
    tenant.quota_page.write_bytes(b"\0" * len(good))
    try:
        done = run(live, bullseye_root, tenant, f"{OPEN} libcuda.so.1")
    finally:
        tenant.quota_page.write_bytes(good)
    assert done.stdout == "802\n", "CUDA_ERROR_SYSTEM_NOT_READY"
