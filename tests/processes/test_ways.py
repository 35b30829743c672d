"""However processes start, fork and end, their driver calls answer as without the shim."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
MIB = 1 << 20
NOT_INITIALIZED, SYSTEM_NOT_READY = 3, 802
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="new namespaces and setuid need root")


@pytest.fixture
def same(inside, outside, tenant):
    """Runs a command outside and in a tenant; the outcome, which is one and the same."""

    def compare(*command: object, **variables: str):
        bare = outside(tenant, *command, **variables)
        assert inside(tenant, *command, **variables) == bare
        tenant.reap()
        assert tenant.charged() == 0
        return bare

    return compare


@pytest.fixture
def hold(tenant):
    """Programs that hold memory until the test ends them."""
    held = []

    def start(*command: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            list(map(str, command)),
            env=tenant.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        held.append(process)
        for line in process.stdout:
            if line == "held\n":
                return process
        raise AssertionError(f"it ended: {process.wait()}; {tenant.log()}")

    yield start
    for process in held:
        process.communicate(timeout=60)


@pytest.mark.parametrize("way", ["fork-before", "raw-fork-before", "clone", "vfork", "spawn"])
def test_parent_and_child_use_the_driver(build, same, way):
    outcome = same(build("ways"), way)
    assert outcome.code == 0
    assert outcome.output.count("cuMemFree(pointer) 0") == 2


@pytest.mark.parametrize("way", ["fork-after", "raw-fork-after", "daemon-after"])
def test_a_child_forked_after_cuda_began_fails_as_without_the_shim(build, same, way):
    outcome = same(build("ways"), way)
    assert f"cuMemAlloc(&pointer, 3 * MIB) {NOT_INITIALIZED}" in outcome.output


def test_children_forked_among_busy_threads_fail_and_never_hang(build, same):
    assert (
        "100 failed as after a fork, 0 otherwise, 0"
        in same(build("ways"), "fork-among-threads").output
    )


@pytest.mark.parametrize(
    ("way", "code"),
    [
        ("use", 0),
        ("_exit", 40),
        ("exit", 41),
        ("quick_exit", 42),
        ("crash", -signal.SIGSEGV),
        ("abort", -signal.SIGABRT),
    ],
)
def test_a_program_ends_as_without_the_shim_and_leaves_nothing_charged(build, same, way, code):
    assert same(build("ways"), way).code == code


def test_a_daemon_uses_the_driver(build, same, tenant):
    same(build("ways"), "daemon-before")


@pytest.mark.parametrize("options", [(), ("-DCUDA_API_PER_THREAD_DEFAULT_STREAM",)])
def test_threads_of_both_kinds_of_default_stream(build, same, options):
    assert same(build("ways", *options), "threads").output == "threads 0\n"


def test_exec_takes_the_slot_over_and_what_was_charged_before_comes_back(build, hold, tenant):
    hold(build("ways"), "exec")  # 6 MiB before, and 6 MiB in the new image
    tenant.reap()
    assert tenant.charged() == 6 * MIB


def test_a_library_that_is_closed_and_opened_again_goes_on(build, same):
    outcome = same(build("libraries", linked=False), "reopen")
    assert outcome.output.count("free 0 close 0") == 3


def test_every_namespaces_copy_of_the_driver_is_charged(build, same, hold, tenant):
    program = build("libraries", linked=False)
    same(program, "namespaces")
    hold(program, "namespaces")
    assert tenant.charged() == 8 * MIB  # of 1, 2 and 3 MiB, in whole slabs


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pythons_worker_processes_behave_as_without_the_shim(same, method, when):
    outcome = same(sys.executable, PROGRAMS / "pools.py", method, when)
    assert outcome.code == 0
    fails = (method, when) == ("fork", "after")
    assert outcome.output.count(f"[{NOT_INITIALIZED}, ") == (6 if fails else 0)


@root_only
@pytest.mark.parametrize("way", ["--pid --fork", "--mount", "--pid --fork --mount-proc"])
def test_processes_of_other_namespaces_share_one_quota(build, hold, tenant, way):
    ways = build("ways")
    hold(ways, "hold")
    other = hold("unshare", *way.split(), "--", ways, "hold")
    tenant.reap()
    assert tenant.charged() == 12 * MIB
    tenant.resize(14 * MIB)
    refused = subprocess.run(
        [ways, "use"], env=tenant.environment(), capture_output=True, text=True, check=False
    )
    assert "cuMemAlloc(&pointer, 3 * MIB) 2" in refused.stdout  # nobody took them for dead
    assert other.poll() is None


@root_only
def test_a_setuid_program_takes_no_quota_from_its_environment(build, tenant, tmp_path_factory):
    """The loader drops the preload there; a shim in the driver's place answers "not ready"."""
    folder = tmp_path_factory.mktemp("setuid")
    for part in (folder, *folder.parents):
        if part.owner() == "root" and str(part) not in ("/", "/tmp"):
            part.chmod(0o755)
    from penstock_shim import paths  # noqa: PLC0415 - for this test alone

    shutil.copy(paths.so_path(), folder / "libcuda.so.1")
    program = folder / "ways"
    shutil.copy(build("ways", f"-Wl,-rpath,{folder}"), program)
    program.chmod(0o4755)
    done = subprocess.run(
        [program, "use"],
        env=tenant.environment(),
        user=65534,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"cuInit(0) {SYSTEM_NOT_READY}\n" in done.stdout, done.stderr
    assert tenant.charged() == 0
