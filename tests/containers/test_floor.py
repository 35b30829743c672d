"""The libraries that containers load need no symbol above GLIBC_2.17 and no library but glibc's."""

from __future__ import annotations

import re
import subprocess

import pytest

from penstock_shim import paths

FLOOR = (2, 17)
GLIBC = {"libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2"}
LIBRARIES = {
    "the shim": paths.so_path,
    "its NVML view": paths.nvml_so_path,
    "the simulated driver": lambda: paths.sim_dir() / "libcuda.so.1",
    "the simulated NVML": lambda: paths.sim_dir() / "libnvidia-ml.so.1",
}


def readelf(option: str, library: str) -> str:
    command = ["readelf", option, "--wide", LIBRARIES[library]()]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("library", LIBRARIES)
def test_no_symbol_is_above_the_floor(library):
    undefined = re.findall(r" UND (\S+?)@+(GLIBC_[\w.]+)", readelf("--dyn-syms", library))
    assert len(undefined) > 20, "the listing was read"
    above = [
        f"{name}@{needed}"
        for name, needed in undefined
        if not re.fullmatch(r"GLIBC_[\d.]+", needed)
        or tuple(map(int, needed.removeprefix("GLIBC_").split("."))) > FLOOR
    ]
    assert above == [], "see shim/native/floor/floor.cmake"
    assert "GLIBC_" in readelf("--version-info", library)


@pytest.mark.parametrize("library", LIBRARIES)
def test_only_glibcs_libraries_are_needed_and_no_folder_of_the_build(library):
    dynamic = readelf("--dynamic", library)
    assert set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)) <= GLIBC
    assert "RPATH" not in dynamic
    assert "RUNPATH" not in dynamic
    assert "DT_RELR" not in dynamic, "read by glibc 2.36 and later only"
    assert "(RELR)" not in dynamic


def test_the_hook_needs_no_library():
    command = ["readelf", "--program-headers", paths.container_hook_path()]
    headers = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "LOAD" in headers
    assert "INTERP" not in headers
