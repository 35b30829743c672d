"""Users of one machine do not stand in each other's way."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from tests.memory.support import tenant_programs

from penstock_shim import paths, simulator

NOBODY = 65534


@pytest.fixture
def public_folder():
    """A folder that every user can look into (pytest's own are root's alone)."""
    with tempfile.TemporaryDirectory(prefix="penstock-users-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.fixture
def roots_state_directory():
    """Root has tenants on this machine: others may not look into its state directory."""
    folder = Path("/run/penstock")
    made = not folder.exists()
    folder.mkdir(mode=0o700, exist_ok=True)
    yield folder
    if made:
        folder.rmdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_roots_state_directory_does_not_keep_others_from_their_tenants(
    public_folder, roots_state_directory
):
    assert roots_state_directory.stat().st_mode & 0o777 == 0o700
    machine = public_folder / "machine"
    simulator.create_machine(machine, "h200").close()
    tenant = tenant_programs.make_tenant(
        public_folder / "tenant", machine, driver=public_folder / "libcuda.so.1"
    )
    for library in (paths.so_path(), paths.sim_dir() / "libcuda.so.1"):
        shutil.copy(library, public_folder)
    program = shutil.copy(paths.workload_path("penstock-latency"), public_folder)
    for path in (public_folder, *public_folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    done = subprocess.run(
        [program, "100"],
        env={
            "LD_PRELOAD": str(public_folder / "libpenstock.so"),
            "LD_LIBRARY_PATH": str(public_folder),
            "PENSTOCK_SIM_MACHINE": str(machine),
            "PENSTOCK_TENANT_DIR": str(tenant.folder),
            "PENSTOCK_LOG": "1",
        },
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
