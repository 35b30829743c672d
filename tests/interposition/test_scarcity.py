"""Something that the shim needs is scarce: an error or normal work, never a crash or no limit."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from penstock_shim.pages import PageError, UsagePage

NOT_READY, OK, OUT_OF_MEMORY = 802, 0, 2
START = Path(__file__).parents[1] / "memory" / "programs" / "racer.c"
MIB = 1 << 20


@pytest.fixture
def holder(compile_c):
    """Allocates a MiB at a time until it is refused, and prints how many it got."""
    from penstock_shim import paths  # noqa: PLC0415

    return compile_c(str(START), f"-L{paths.sim_dir()}", "-l:libcuda.so.1", name="holder")


def outcome(program, tenant, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, "0", "0", "1024", "hold"],
        env=tenant.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


def limit_files(count):
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


@pytest.mark.parametrize("files", [3, 4, 5, 6, 8, 12])
def test_with_few_descriptors_cuda_works_under_the_quota_or_not_at_all(holder, make_tenant, files):
    done = outcome(holder, make_tenant(6 * MIB), preexec_fn=limit_files(files))
    assert done.returncode >= 0, "a crash"
    assert done.stdout in ("", "6\n")


@pytest.mark.parametrize("megabytes", [8, 64, 256, 1024, 8192])
def test_with_little_address_space_cuda_works_under_the_quota_or_not_at_all(
    holder, make_tenant, megabytes
):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (megabytes * MIB, megabytes * MIB))

    done = outcome(holder, make_tenant(6 * MIB), preexec_fn=limit)
    assert done.returncode >= 0, "a crash"
    assert done.stdout in ("", "6\n")


def test_a_usage_page_that_may_only_be_read_keeps_cuda_shut(compile_c, make_tenant):
    tenant = make_tenant()
    (tenant.folder / "usage").chmod(0o444)
    tenant.folder.chmod(0o755)
    for folder in (tenant.folder, *tenant.folder.parents):
        if folder.owner() == "root" and str(folder) not in ("/", "/tmp"):
            folder.chmod(0o755)
    (tenant.folder / "quota").chmod(0o644)
    command = [shutil.copy(compile_c("init.c", "-ldl"), tenant.folder)]
    variables = {**tenant.environment(), "PENSTOCK_LOG": "stderr"}
    user = {"user": 65534} if os.geteuid() == 0 else {}
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, check=False, **user
    )
    assert int(done.stdout) == NOT_READY
    assert "may be read but not written" in done.stderr
    assert "write permission" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a mount namespace without /proc")
def test_without_proc_cuda_works_under_the_quota(holder, make_tenant):
    tenant = make_tenant(6 * MIB)
    # The simulated machine asks for the boot's name; nothing else is left there.
    boot = "sys/kernel/random"
    script = f"""id=$(cat /proc/{boot}/boot_id); mount -t tmpfs none /proc
        mkdir -p /proc/{boot} && echo $id > /proc/{boot}/boot_id && exec "$0" "$@\""""
    words = ["unshare", "-m", "sh", "-c", script, str(holder), "0", "0", "1024", "hold"]
    done = subprocess.run(
        words,
        env={**os.environ, **tenant.environment()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "6\n"), done.stderr + tenant.log()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_usage_page_that_does_not_fit_its_file_system_is_refused_and_leaves_nothing(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", small], check=True)
    try:
        with pytest.raises(PageError, match="No space"):
            UsagePage.create(small / "usage").close()
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)
