"""Programs that lost the shim, or bypass it, are reported; without an agent nothing stops them."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock_shim import paths
from penstock_shim.pages import read_quota

from .conftest import wait_until

WORKER = Path(__file__).with_name("support") / "gpu_worker.py"
MATHS = "/lib/x86_64-linux-gnu/libm.so.6"
FRESH = (
    "import os, subprocess, sys; keep = {k: v for k, v in os.environ.items() "
    "if k in ('PATH', 'LD_LIBRARY_PATH', 'PENSTOCK_SIM_MACHINE')}; "
    "sys.exit(subprocess.run(sys.argv[1:], env=keep).returncode)"
)


@pytest.fixture(autouse=True)
def inputs(penstock):
    """Workers read commands: their pipes are closed before they are ended."""
    yield
    for process in penstock.started:
        with contextlib.suppress(OSError):
            process.stdin.close()


def start(penstock, *command, **options):
    """`penstock run` of a worker, below `command`."""
    process = penstock.start(
        "--name=t", "--", *command, sys.executable, str(WORKER), memory="2Gi",
        stdin=subprocess.PIPE, **options,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    return process


def tell(process, line: str) -> str:
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def events(penstock, kind="uncharged") -> list[dict]:
    file = penstock.state / "tenants" / "t" / "events.jsonl"
    return [e for e in map(json.loads, file.read_text().splitlines()) if e["event"] == kind]


@pytest.mark.parametrize(
    "wrapper",
    [("env", f"LD_PRELOAD={MATHS}"), (sys.executable, "-c", FRESH)],
    ids=["preload of its own", "fresh environment"],
)
def test_a_program_that_lost_the_preload_is_named_with_its_pid_and_what_to_do(penstock, wrapper):
    process = start(penstock, *wrapper)
    assert tell(process, "alloc 1536") == "ok"
    (event,) = wait_until(lambda: events(penstock))
    (row,) = penstock.ps()
    pid = tell(process, "fork echo $PPID")
    for text in (event["reason"], row["problem"]):
        assert f"pid {pid} uses the device without a quota" in text
        assert "LD_PRELOAD" in text
    assert " holds " in row["problem"]
    shown = penstock("ps").stdout
    assert "uses the device without a quota" in " ".join(shown.split())
    process.stdin.close()
    assert process.wait(30) == 0


def test_the_finding_goes_when_the_program_has_ended(penstock):
    script = 'env LD_PRELOAD= "$0" "$1"; echo over; read x'
    process = start(penstock, "sh", "-c", script)
    wait_until(lambda: events(penstock))
    pid = int(tell(process, "fork echo $PPID"))
    finding = penstock.state / "tenants" / "t" / "uncharged"
    assert str(pid) in wait_until(lambda: finding.exists() and finding.read_text())
    subprocess.run(["kill", str(pid)], check=True)
    assert process.stdout.readline() == "over\n"
    wait_until(lambda: not finding.exists())
    (row,) = penstock.ps()
    assert row["problem"] is None
    assert len(events(penstock)) == 1


def test_a_program_of_a_tenant_that_keeps_the_preload_is_no_finding(penstock):
    process = start(penstock)
    assert tell(process, "alloc 1024") == "ok"
    assert tell(process, "load 6") == "ok"
    assert events(penstock) == []
    assert penstock.ps()[0]["problem"] is None


def test_a_program_that_only_initialised_the_driver_is_no_finding(penstock):
    program = (
        "import ctypes, time; ctypes.CDLL('libcuda.so.1').cuInit(0)\n"
        "print('ready', flush=True); input()"
    )
    process = penstock.start("--name=t", "--", sys.executable, "-c", program, stdin=-1)
    assert process.stdout.readline() == "ready\n"
    heartbeat = penstock.state / "tenants" / "t" / "quota"
    end_ns = read_quota(heartbeat).heartbeat_ns + 3_000_000_000
    wait_until(lambda: read_quota(heartbeat).heartbeat_ns > end_ns)
    assert events(penstock) == []


def test_work_through_a_copy_of_the_driver_is_found_by_the_devices_own_figures(penstock, tmp_path):
    """The first call gives the process a slot; its work then goes to the copy."""
    copy = tmp_path / "notthedriver.so"
    shutil.copy(paths.sim_dir() / "libcuda.so.1", copy)
    program = (
        "import ctypes, runpy, sys\n"
        "real = ctypes.CDLL; first = real('libcuda.so.1'); first.cuInit(0)\n"
        "first.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)\n"
        f"ctypes.CDLL = lambda name, *rest: real({str(copy)!r})\n"
        "runpy.run_path(sys.argv[2], run_name='__main__')\n"
    )
    process = start(penstock, sys.executable, "-c", program, cores="10")
    process.stdin.write("load 30\n")
    process.stdin.flush()
    (event,) = wait_until(lambda: events(penstock))
    assert "this tenant used" in event["reason"]
    assert "10 percent are granted" in event["reason"]
    # The figures do not tell one from the other: an honest program is not to be accused.
    assert "either a program bypasses the shim" in event["reason"]
    assert "or Penstock charged its calls too little" in event["reason"]
    assert "please report it" in event["reason"]
