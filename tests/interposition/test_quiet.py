"""Programs that use no GPU do not notice the shim."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from penstock_shim import paths

PRELOADS = [paths.so_path(), paths.nvml_so_path()]
COMMANDS = {
    "true": ["true"],
    "bash": ["bash", "-c", "echo $((6*7)); ls / >/dev/null && exit 3"],
    "python": [sys.executable, "-c", "import ssl, sqlite3, threading; print(6*7)"],
    "git": ["git", "--version"],
}


def outcome(command, environment) -> tuple[int, str, str]:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_program_without_cuda_behaves_and_prints_as_without_the_shim(command, preloaded):
    assert outcome(command, preloaded(*PRELOADS)) == outcome(command, os.environ)


def test_a_static_program_is_not_disturbed(compile_c, preloaded):
    program = compile_c("hello.c", "-static")
    assert outcome([program], preloaded(*PRELOADS)) == (0, "hello\n", "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a setuid program of another user")
def test_a_setuid_program_is_not_disturbed(compile_c, preloaded, tmp_path_factory):
    # The loader drops a preload given by path there, silently.
    folder = tmp_path_factory.mktemp("setuid")
    for part in (folder, *folder.parents):
        if part.owner() == "root" and str(part) not in ("/", "/tmp"):
            part.chmod(0o755)
    program = folder / "hello"
    shutil.copy(compile_c("hello.c", name="hello-shared"), program)
    program.chmod(0o4755)
    done = subprocess.run(
        [program], env=preloaded(*PRELOADS), capture_output=True, text=True, check=False, user=65534
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")


def test_a_program_that_opens_no_driver_claims_no_slot(make_tenant):
    tenant = make_tenant()
    usage = (tenant.folder / "usage").read_bytes()
    subprocess.run([sys.executable, "-c", "import ctypes"], env=tenant.environment(), check=True)
    assert (tenant.folder / "usage").read_bytes() == usage
    assert tenant.log() == ""


def test_libraries_found_by_their_openers_runpath_are_still_found(compile_c, preloaded, tmp_path):
    plugin = compile_c("plugin.c", "-shared", "-fPIC", name="libpenstocktestplugin.so")
    folder = plugin.parent / "plugins"
    folder.mkdir(exist_ok=True)
    shutil.copy(plugin, folder)
    host = compile_c(
        "host.c", "-shared", "-fPIC", "-ldl", f"-Wl,-rpath,{folder}", "-Wl,--enable-new-dtags",
        name="libpenstocktesthost.so",
    )  # fmt: skip
    plugin.unlink()
    program = compile_c("runpath.c", str(host), "-ldl", f"-Wl,-rpath,{host.parent}")
    assert outcome([program], os.environ) == (0, "42\n", "")
    assert outcome([program], preloaded(*PRELOADS)) == (0, "42\n", "")
