"""However a program reaches the driver or NVML, it reaches the shim: it sees its quota."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock_shim import paths

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
LIMIT = 777 * MIB
CUDA_FILE = paths.sim_dir() / "libcuda.so.1"
NVML_FILE = paths.sim_dir() / "libnvidia-ml.so.1"


@pytest.fixture
def doors(compile_c):
    """The program, linked with the simulated libraries as others are with `-lcuda`."""
    libraries = ["-l:libcuda.so.1", "-l:libnvidia-ml.so.1", "-ldl"]
    return compile_c("doors.c", "-DLINKED", f"-L{paths.sim_dir()}", *libraries, name="linked")


@pytest.fixture
def unlinked(compile_c):
    """The same without any need for the libraries at its start."""
    return compile_c("doors.c", "-ldl")


def seen(program: Path, tenant, *words: object) -> int:
    command = [program, *map(str, words)]
    environment = tenant.environment()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + tenant.log()
    return int(done.stdout)


@pytest.fixture
def tenant(make_tenant):
    return make_tenant(LIMIT)


def test_without_the_shim_the_device_is_seen_whole(doors, tenant):
    environment = tenant.environment()
    del environment["LD_PRELOAD"]
    for words in (["linked"], ["nvml", "linked"]):
        command = [doors, *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert int(done.stdout) > 100_000 * MIB


@pytest.mark.parametrize("library", [[], ["nvml"]], ids=["cuda", "nvml"])
@pytest.mark.parametrize("way", ["linked", "next", "default"])
def test_a_linked_symbol_is_the_shims(doors, tenant, library, way):
    assert seen(doors, tenant, *library, way) == LIMIT


@pytest.mark.parametrize("way", ["dlopen", "dlmopen"])
@pytest.mark.parametrize("name", ["libcuda.so.1", "libcuda.so", CUDA_FILE, "libcuda.so.999.1"])
def test_every_name_of_the_driver_opens_the_shim(unlinked, tenant, way, name):
    assert seen(unlinked, tenant, way, name) == LIMIT


@pytest.mark.parametrize("way", ["dlopen", "dlmopen"])
@pytest.mark.parametrize("name", ["libnvidia-ml.so.1", "libnvidia-ml.so", NVML_FILE])
def test_every_name_of_nvml_opens_the_shims_view(unlinked, tenant, way, name):
    assert seen(unlinked, tenant, "nvml", way, name) == LIMIT


def test_a_symbolic_link_to_the_driver_opens_the_shim(unlinked, tenant, tmp_path):
    link = tmp_path / "libcuda.so"
    link.symlink_to(CUDA_FILE)
    assert seen(unlinked, tenant, "dlopen", link) == LIMIT


@pytest.mark.parametrize("way", ["dlopen", "dlmopen"])
@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
@pytest.mark.parametrize("file", [CUDA_FILE, NVML_FILE], ids=["cuda", "nvml"])
def test_a_link_of_any_name_to_the_driver_opens_the_shim(  # noqa: PLR0917
    make_tenant, unlinked, tmp_path, way, link, file
):
    """The driver lies in a folder of its own here: a hard link stays within one file system."""
    below = tmp_path / "below"
    below.mkdir()
    for one in (CUDA_FILE, NVML_FILE):
        shutil.copy(one, below / one.name)
    tenant = make_tenant(LIMIT, driver=below / CUDA_FILE.name, nvml=below / NVML_FILE.name)
    name = tmp_path / "notthedriver.so"
    getattr(name, link)(below / file.name)
    library = ["nvml"] if file == NVML_FILE else []
    assert seen(unlinked, tenant, *library, way, name) == LIMIT


def test_a_path_to_another_library_is_left_alone(unlinked, tenant, tmp_path):
    link = tmp_path / "other.so"
    link.symlink_to("/lib/x86_64-linux-gnu/libm.so.6")
    command = [unlinked, "dlopen", link]
    done = subprocess.run(
        command, env=tenant.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "cuInit" in done.stderr


@pytest.mark.parametrize("flags", [0, 1, 2])
def test_cugetprocaddress_returns_the_shims_functions(unlinked, tenant, flags):
    assert seen(unlinked, tenant, "query", 12000, flags) == LIMIT


def test_the_first_version_of_cugetprocaddress_returns_the_shims_functions_too(unlinked, tenant):
    assert seen(unlinked, tenant, "oldquery", 11030) == LIMIT


def test_nvml_names_are_left_alone_without_the_shims_view(unlinked, tenant):
    environment = tenant.environment(LD_PRELOAD=str(paths.so_path()))
    done = subprocess.run(
        [unlinked, "nvml", "dlopen", "libnvidia-ml.so.1"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) > 100_000 * MIB


def test_the_order_of_preloading_does_not_matter(unlinked, tenant):
    environment = tenant.environment(LD_PRELOAD=f"{paths.nvml_so_path()} {paths.so_path()}")
    for words in (["dlopen", "libcuda.so"], ["nvml", "dlopen", "libnvidia-ml.so"]):
        command = [unlinked, *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert int(done.stdout) == LIMIT


def test_a_library_in_the_place_of_the_driver_is_a_door_too(unlinked, tenant, tmp_path):
    """As in a container where the shim is mounted over libcuda.so.1 and nothing is preloaded."""
    (tmp_path / "libcuda.so.1").symlink_to(paths.so_path())
    environment = tenant.environment(LD_LIBRARY_PATH=str(tmp_path))
    del environment["LD_PRELOAD"]
    command = [unlinked, "dlopen", "libcuda.so.1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) == LIMIT


@pytest.mark.parametrize("name", ["/nowhere/libcuda.so.1", "libcuda.so.1.backup"])
def test_a_driver_name_without_a_driver_behind_it_is_not_found(preloaded, name):
    program = "import ctypes, sys\ntry: ctypes.CDLL(sys.argv[1])\nexcept OSError: print('none')"
    done = subprocess.run(
        [sys.executable, "-c", program, name],
        env=preloaded(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "none\n"


DEEP = """
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW | os.RTLD_DEEPBIND)
library.deep_open.restype = ctypes.c_void_p
handle = library.deep_open(sys.argv[2].encode())
print(hasattr(ctypes.CDLL(sys.argv[2], handle=handle), "penstock_cuda_shim"))
"""


@pytest.mark.parametrize(("name", "is_shim"), [("libcuda.so.1", True), (CUDA_FILE, False)])
def test_a_library_that_is_bound_to_itself_first_gets_the_shim_by_name_alone(
    compile_c, tenant, name, is_shim
):
    """RTLD_DEEPBIND: it calls libc's own dlopen, as SECURITY.md says."""
    library = compile_c("deep.c", "-shared", "-fPIC", name="libdeep.so")
    done = subprocess.run(
        [sys.executable, "-c", DEEP, library, name],
        env=tenant.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{is_shim}\n"
